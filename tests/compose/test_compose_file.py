"""docker-compose.yml as data: what can be checked without an engine."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from compose_stack import ROOT, STAGES, require_compose, run
from model_configs import written

from core.grammars.library import VERSION
from core.profile import Card, Machine, Profile, choose, read_shape
from core.settings import Settings, load_settings
from onward.directory.layout import SHIPPED_MODEL
from onward.profiles.files import as_compose_env
from serving.engines.sglang.adapters import room_for
from serving.engines.sglang.process import adapter_arguments, cpu_arguments, cpu_environment

pytestmark = pytest.mark.compose
Services = Mapping[str, Mapping[str, Any]]
GPU = "docker-compose.gpu.yml"
MONITORING = "docker-compose.monitoring.yml"
LOGGING = {"driver": "json-file", "options": {"max-size": "10m", "max-file": "5"}}
ONCE = ("secrets", "migrate", "engine-arguments", "simulator", "doctor")
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
PACKAGES = {*LAYERS, "kernels", "migrations", "models"} - {"onward_kernels"}  # which stands in `kernels`


@pytest.fixture(scope="module", params=[(), (GPU,), (MONITORING,)], ids=["cpu", "gpu", "monitoring"])
def services(request: pytest.FixtureRequest) -> Services:
    require_compose(engine=False)
    files = [part for name in ("docker-compose.yml", *request.param) for part in ("-f", name)]
    config = run("docker", "compose", *files, "--profile", "*", "config", "--format", "json")
    return dict(json.loads(config)["services"])


def test_who_is_waited_for_is_there(services: Services) -> None:
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
    for name in STAGES:
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_ports_are_those_of_loopback(services: Services) -> None:
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_images_are_ours_or_pinned(services: Services) -> None:
    built = {service["image"] for service in services.values() if "build" in service}
    for name, service in services.items():
        image = service["image"]
        assert image in built or re.search(r":v?\d", image), f"{name}: {image}"
        assert "build" in service or image not in built or service["pull_policy"] == "never", name


def test_images_of_ours_have_a_tag_that_is_set_and_is_not_latest() -> None:
    require_compose(engine=False)

    def tags(**environment: str) -> set[str]:
        found = run("docker", "compose", "--profile", "*", "config", "--images", environment=environment).split()
        return {image.partition(":")[2] for image in found if image.startswith("onward-")}

    product = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert tags(ONWARD_VERSION="") == {product}
    assert tags(ONWARD_VERSION="yesterday") == {"yesterday"}


def test_all_that_reads_settings_reads_the_file_beside_it() -> None:
    require_compose(engine=False)

    def mounted(**environment: str) -> dict[str, str]:
        config = run("docker", "compose", "--profile", "*", "config", "--format", "json", environment=environment)
        found = json.loads(config)["services"].items()
        mounts = [(name, mount) for name, service in found for mount in service.get("volumes", ())]
        ours = {name: mount for name, mount in mounts if mount["target"] == "/data/onward.toml"}
        assert all(mount["read_only"] and not mount["bind"].get("create_host_path") for mount in ours.values())
        return {name: mount["source"] for name, mount in ours.items()}

    shipped = ROOT / "deploy" / "settings.toml"
    others = ("migrate", "engine-arguments", "judge", "notify", "doctor")
    assert mounted(ONWARD_SETTINGS="") == dict.fromkeys((*STAGES, *others), str(shipped))
    assert load_settings(shipped, {}) == Settings()
    assert set(mounted(ONWARD_SETTINGS="./onward.toml").values()) == {str(ROOT / "onward.toml")}
    assert {"/.env", "/onward.toml"} <= set((ROOT / ".gitignore").read_text().splitlines())


def test_the_page_names_all_settings_that_the_stack_has_from_the_environment() -> None:
    require_compose(engine=False)
    services = json.loads(run("docker", "compose", "--profile", "*", "config", "--format", "json"))["services"]
    given = {name for service in services.values() for name in service.get("environment", ())}
    given |= set(re.findall(r'"(ONWARD_\w+)"', (ROOT / "deploy" / "image" / "make-secrets").read_text()))
    paths = {name.removeprefix("ONWARD_").lower().replace("__", ".") for name in given if name.startswith("ONWARD_")}
    section = (ROOT / "docs" / "stack.md").read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    rows = "".join(re.findall(r"^\| .*$", section, re.MULTILINE))
    assert set(re.findall(r"`([a-z_.]+)`", rows)) - {"secrets", ".env"} == paths


def test_no_secret_is_written_down(services: Services) -> None:
    for name, service in services.items():
        values = service.get("environment", {})
        secret = [key for key in values if re.search(r"KEY|PASSWORD|SECRET|TOKEN(?!S)|POSTGRES__URL", key)]
        assert [key for key in secret if not key.endswith("_FILE")] == [], name
        said = json.dumps([values, service.get("command"), service.get("entrypoint")])
        assert not re.search(r"://[^/@\s]+:[^/@\s]+@", said), name


def test_each_has_its_own_secrets_alone(services: Services) -> None:
    mounted = {
        name: {mount["source"] for mount in service.get("volumes", ()) if mount["target"].startswith("/run/secrets")}
        for name, service in services.items()
    }
    everything = mounted.pop("secrets")
    assert {"secrets", "secrets-stages"} < everything
    given = {"api": "api", "doctor": "api", "postgres": "postgres", "simulator": "simulator"}
    for name, found in mounted.items():
        ours = name in STAGES or name in ("migrate", "judge", "notify", *given)
        assert found == ({f"secrets-{given.get(name, 'stages')}"} if ours else set()), name


def test_all_that_runs_is_watched_bounded_and_given_time(services: Services) -> None:
    for name, service in services.items():
        on_gpu = "devices" in service["deploy"]["resources"].get("reservations", {})
        assert on_gpu or int(service["deploy"]["resources"]["limits"]["memory"]) > 0, name
        assert service["logging"] == LOGGING, name
        if name in ONCE:
            continue
        assert service["healthcheck"]["test"], name
        assert service["restart"] == "unless-stopped", name
        assert name not in STAGES or "stop_grace_period" in service, name


def test_none_may_do_more_than_it_must(services: Services) -> None:
    """A GPU engine has another image, which writes files anywhere."""
    for name, service in services.items():
        on_gpu = "devices" in service["deploy"]["resources"].get("reservations", {})
        assert service.get("read_only") or (on_gpu and name not in STAGES), name
        assert service["cap_drop"] == ["ALL"], name
        assert bool(service.get("cap_add")) == (name == "postgres"), name
        assert "no-new-privileges:true" in service.get("security_opt", ()) or name in ONCE, name
        assert not any(mount["target"] == "/var/run/docker.sock" for mount in service.get("volumes", ())), name
    assert all(services[name]["init"] for name in STAGES)


def settings_of(service: Mapping[str, Any]) -> Settings:
    """Read a service's settings; variables that are not set anywhere are not set in a container."""
    return load_settings(None, {name: value for name, value in service["environment"].items() if value is not None})


def test_settings_are_settings(services: Services) -> None:
    for name in (*STAGES, "migrate", "engine-arguments", "doctor", "simulator"):
        settings = settings_of(services[name])
        assert settings.mode == "distributed", name
        assert settings.serving.sglang.replicas == 0, name


def test_who_the_judge_is_stands_in_one_file(tmp_path: Path) -> None:
    """Retention waits for an enabled judge: those who must know it read the same file, which is optional."""
    require_compose(engine=False)
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    config = ("docker", "compose", "--project-directory", str(tmp_path), "--profile", "*", "config", "--format", "json")

    def told() -> set[str]:
        found = json.loads(run(*config))["services"]
        return {name for name, service in found.items() if "ONWARD_JUDGE__MODEL" in service.get("environment", {})}

    assert told() == set()
    (tmp_path / "judge.env").write_text("ONWARD_JUDGE__MODEL=some\n")
    assert told() == {"judge", "archive", "doctor"}
    assert "/judge.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_a_judge_runs_where_it_is_asked_for(services: Services) -> None:
    assert services["judge"]["profiles"] == ["judge"]
    assert services["judge"]["read_only"]


def arguments_of(services: Services, name: str, directory: Path, settings: str = "") -> list[str]:
    """Return the arguments that an engine starts with, once the stack's own service has written them.

    The model is the shipped one. What the containers have at paths of theirs is in the directory."""
    paths = {"/data": directory, "/engine/arguments": directory / "arguments", "/model": SHIPPED_MODEL}
    (directory / "onward.toml").write_text(settings)
    writer, engine = services["engine-arguments"], services[name]
    program = [str(paths.get(word, word)) for word in writer["command"]]
    given = {name: str(paths.get(value, value)) for name, value in writer["environment"].items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-m", "onward", *program],
        env={**os.environ, **given},
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    assert not done.stdout
    image = re.findall(r"^ENTRYPOINT (.*launcher.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    script, file, *server = engine["entrypoint"] or json.loads(image[0])
    assert script in ("with-arguments", "/with-arguments")
    assert "sglang" in " ".join(server) or "launcher.py" in " ".join(server)
    show = (sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))")
    own = [*server[server.index("--host") :], *(engine["command"] or ())]
    return list(json.loads(run(str(ROOT / "deploy" / "image" / "with-arguments"), str(paths[file]), *show, *own)))


def test_engines_are_started_as_the_host_starts_them(services: Services, tmp_path: Path) -> None:
    """They take the adapters that the stack's learner makes, and compute in the learner's dtype."""
    device = settings_of(services["serve-1"]).serving.sglang.device
    dtype = "float32" if device == "cpu" else "bfloat16"
    room = room_for(SHIPPED_MODEL, 8, ["q_proj"])
    assert room is not None
    for name in ("engine-1", "engine-2"):
        plain = arguments_of(services, name, tmp_path)
        assert plain[:4] == ["--host", "0.0.0.0", "--port", "30000"]
        assert f"--model-path {SHIPPED_MODEL}" in " ".join(plain)
        if device == "cpu":
            assert plain[6:] == cpu_arguments("float32"), name
        assert plain[plain.index("--dtype") + 1] == dtype
        assert "--enable-lora" not in plain
        adapting = arguments_of(services, name, tmp_path, '[learner.lora]\nrank = 8\ntargets = ["q_proj"]\n')
        assert adapting == [*plain, *adapter_arguments(room, device)], name


def test_engines_read_what_is_written_before_they_start(services: Services) -> None:
    (written_to,) = (mount for mount in services["engine-arguments"]["volumes"] if mount["target"] == "/engine")
    for name in ("engine-1", "engine-2"):
        (read,) = (mount for mount in services[name]["volumes"] if mount["target"] == "/engine")
        assert (read["source"], read["read_only"]) == (written_to["source"], True)
        assert services[name]["depends_on"]["engine-arguments"]["condition"] == "service_completed_successfully"
    models = {mount["source"] for name in ("engine-arguments", "engine-1") for mount in services[name]["volumes"]
              if mount["target"] == "/model"}  # fmt: skip
    assert len(models) == 1, "the adapters are those of the model that is served"


def test_doctor_asks_both_engines(services: Services) -> None:
    settings = settings_of(services["doctor"]).serving.sglang
    host = settings_of(services["serve-1"]).serving.sglang
    assert (settings.device, settings.dtype) == (host.device, host.dtype)
    hosted = [services[f"serve-{n}"]["command"][-1] for n in (1, 2)]
    assert list(settings.urls) == hosted


def test_learner_and_engines_compute_in_one_dtype(services: Services) -> None:
    for name in ("api", "serve-1", "serve-2", "engine-arguments"):
        settings = settings_of(services[name]).serving.sglang
        assert settings.dtype == settings_of(services["learn"]).learner.compute.precision
        assert settings.llguidance == (VERSION if settings.device == "cpu" else ""), "the image's own"


@pytest.fixture
def on_cards(tmp_path: Path) -> tuple[Profile, Services]:
    """Return an 8B model's profile on eight GPUs, and the stack under it."""
    require_compose(engine=False)
    model = written(tmp_path, "qwen3-8b")
    profile = choose(read_shape(model), Machine(16, 10**11, (Card("NVIDIA H100 80GB HBM3", 80 * 10**9),) * 8), "cuda")
    (tmp_path / "compose.env").write_text(as_compose_env(model, profile))
    files = ("--env-file", str(tmp_path / "compose.env"), "-f", "docker-compose.yml", "-f", GPU)
    return profile, dict(json.loads(run("docker", "compose", *files, "config", "--format", "json"))["services"])


def test_a_profile_reaches_the_learner_and_the_engines(on_cards: tuple[Profile, Services], tmp_path: Path) -> None:
    profile, services = on_cards
    wanted, found = profile.settings, settings_of(services["learn"])
    unlike = {"device", "enabled"}
    assert found.learner.model_dump(exclude=unlike) == wanted.learner.model_dump(exclude=unlike)
    assert found.learner.lora.rank == 16
    assert settings_of(services["api"]).serving.context_length == wanted.serving.context_length
    command = " ".join(arguments_of(services, "engine-1", tmp_path))
    assert "--enable-lora --lora-strict-loading --max-lora-rank 16" in command
    assert f"--mem-fraction-static {wanted.serving.sglang.arguments[1]}" in command
    assert services["engine-1"]["volumes"][0]["source"].endswith("qwen3-8b")


def test_each_engine_and_the_learner_have_a_gpu_of_their_own(on_cards: tuple[Profile, Services]) -> None:
    _, services = on_cards
    given = [
        services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name in ("engine-1", "engine-2", "learn")
    ]
    assert sorted(card for cards in given for card in cards) == ["0", "1", "2"]


def test_engines_on_a_cpu_have_the_environment_of_those_that_the_host_starts() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for key, value in cpu_environment().items():
        assert f"{key}={value}" in dockerfile, key


def test_all_stages_are_scraped() -> None:
    text = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    names = {name.strip() for found in re.findall(r"names: \[([^\]]+)\]", text) for name in found.split(",")}
    assert names == {*STAGES, "judge", "notify", "alertmanager"}, "the last is who is told of alerts"


def test_images_hold_all_of_the_program() -> None:
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert {path.split("/")[0] for path in allowed} >= PACKAGES
    tracked = run("git", "ls-files", "--", *sorted(PACKAGES)).splitlines()
    assert {path.split("/")[0] for path in tracked} == PACKAGES


def test_our_images_run_as_a_user_without_rights() -> None:
    text = (ROOT / "Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", text, re.MULTILINE | re.DOTALL))
    assert "useradd --uid 10001 --create-home onward" in stages["base"]
    started = {name: stage for name, stage in stages.items() if "\nENTRYPOINT" in stage}
    assert {"light", "learn", "sglang-cpu"} <= started.keys()
    for name, stage in started.items():
        assert re.findall(r"^USER (\S+)", stage, re.MULTILINE) == ["onward"], name
