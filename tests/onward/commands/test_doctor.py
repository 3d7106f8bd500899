"""`onward doctor` names what is wrong and says what to do."""

import errno
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from api_harness import serve
from safetensors.torch import load_file, save_file
from weights_server import weights_server

from core.blobs import FsspecBlobs
from core.errors import ConfigError, OnwardError
from core.ids import BASE, PolicyRef
from core.operations.fleet import ReplicaStatus
from core.ports import AdapterConfig
from core.settings import Settings
from onward.commands.accounts.keys import create as create_key
from onward.commands.doctor import examine, samples
from onward.commands.options import overrides_of
from onward.directory.addresses import write_address
from onward.directory.layout import SHIPPED_MODEL, SHIPPED_REWARDS, Layout
from onward.profiles.loadable import require_loadable
from onward.wiring.foundation import open_store
from serving.engines.local.modules.given import load_given
from serving.weights.deltas.manifest import WeightsManifest, manifest_path

Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Return what the command does, in this process, which has imported all of it."""

    def ask(directory: Path, *settings: str) -> tuple[int, str]:
        code = examine(directory, overrides_of(list(settings)))
        return code, capsys.readouterr().out

    return ask


def test_a_new_directory_is_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "onward", "doctor", str(tmp_path / "service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/bin"})
    told = done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert "wrong " not in told
    assert "it is made at the first start" in told
    assert not (tmp_path / "service").exists(), "looking makes nothing"


def test_a_directory_that_is_no_services_is_said_to_be_so(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    code, told = doctor(tmp_path)
    assert code == 1
    (line,) = [line for line in told.splitlines() if "wrong " in line]
    assert "directory" in line
    assert "letter.txt" in line
    (tmp_path / "onward.toml").write_text("")
    code, told = doctor(tmp_path)
    assert code == 0
    assert "letter.txt" not in told


def test_a_directory_that_may_not_be_read_is_said_to_be_so(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root may read anything, what the system says is planted."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/closed/onward.toml")

    monkeypatch.setattr("onward.commands.doctor.look_at_directory", refuse)
    code, told = doctor(Path("/srv/closed"))
    assert code == 1
    assert "/srv/closed/onward.toml: Permission denied" in told
    assert "allow us to read and write there" in told


def test_a_full_disk_is_said_to_be_so_and_where(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("onward.commands.doctor.Path.write_bytes", refuse)
    code, told = doctor(tmp_path)
    assert code == 1
    wrong = [line for line in told.splitlines() if "wrong " in line]
    assert wrong
    assert all(f"{tmp_path}: No space left on device" in line for line in wrong)


def test_a_part_of_the_running_service_that_is_down_is_named(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tmp_path / "served") as service:
        directory = tmp_path / "service"
        directory.mkdir()
        write_address(Layout(directory).address, service.url)
        assert "all of" in doctor(directory)[1]
        service.states["learner"] = "down: it ended"
        code, told = doctor(directory)
    assert code == 1
    assert "learner: down: it ended" in told


@pytest.mark.parametrize(
    ("setting", "what", "why"),
    [
        ("api.port=99999", "settings", "api.port"),
        ("serving.model=/nowhere", "model", "/nowhere"),
        ("scoring.spec=/nowhere.toml", "rewards", "/nowhere.toml"),
        ("api.host=0.0.0.0", "api keys", "keys"),
        ("blobs=/proc/nothing", "blobs", "/proc"),
        ("serving.engine=sglang", "SGLang", "serving.sglang.python"),
    ],
)
def test_what_is_wrong_is_named(doctor: Doctor, tmp_path: Path, setting: str, what: str, why: str) -> None:
    more = ("serving.sglang.python=/nowhere/python",) if "sglang" in setting else ()
    code, told = doctor(tmp_path / "service", setting, *more)
    assert code == 1, told
    (line,) = [line for line in told.splitlines() if "wrong " in line]
    assert what in line
    assert why in line


def test_a_model_that_is_not_whole_is_named(doctor: Doctor, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(SHIPPED_MODEL, model)
    for spoil, what in (
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated, 1 bytes are missing"),
        (lambda path: path.unlink(), "no weights"),
    ):
        spoil(model / "model.safetensors")
        code, told = doctor(tmp_path / "service", f"serving.model={model}")
        assert code == 1
        assert what in told


def rewritten(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def without_tensors(path: Path, part: str) -> None:
    save_file({name: tensor for name, tensor in load_file(path).items() if part not in name}, path)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda model: without_tensors(model / "model.safetensors", "q_proj"), "lack 4 .*q_proj.weight"),
        (lambda model: rewritten(model / "config.json", num_hidden_layers=5, layer_types=None), "lack 11 .*layers.4"),
        (lambda model: rewritten(model / "config.json", intermediate_size=512), "other shapes for 12 .*mlp.down_proj"),
    ],
)
def test_weights_that_do_not_fit_their_config_are_named(
    doctor: Doctor, tmp_path: Path, spoil: Callable[[Path], None], what: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(SHIPPED_MODEL, model)
    spoil(model)
    code, told = doctor(tmp_path / "service", f"serving.model={model}")
    assert code == 1
    assert re.search(what, told), told
    with pytest.raises(ConfigError, match=what):
        load_given(model, "cpu", torch.float32)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"model_type": "lama"}, "model_type is 'lama'"),
        ({"model_type": "bert-japanese"}, "model_type is 'bert-japanese'"),
        ({"model_type": None}, "model_type is None"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized \\(gptq\\)"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
            "quantized \\(bitsandbytes\\)",
        ),
    ],
)
@pytest.mark.parametrize("has_torch", [True, False])
def test_a_model_that_nothing_here_can_load_is_named(
    doctor: Doctor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, object],
    what: str,
    has_torch: bool,
) -> None:
    model = tmp_path / "model"
    shutil.copytree(SHIPPED_MODEL, model)
    rewritten(model / "config.json", **fields)
    if not has_torch:
        monkeypatch.setattr("onward.commands.doctor.find_spec", lambda name: None)
    code, told = doctor(tmp_path / "service", f"serving.model={model}")
    assert code == 1
    assert re.search(f"{model / 'config.json'}: .*{what}.*: take ", told), told


def test_models_of_other_kinds_are_not_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("gemma3_text", "gpt2", "olmo2", "phi3"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        require_loadable(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}')
    require_loadable(tmp_path)
    monkeypatch.setattr("onward.profiles.loadable.find_spec", lambda name: None)
    (tmp_path / "config.json").write_text('{"model_type": "what nobody knows"}')
    require_loadable(tmp_path)


BYTES = "no text"
OTHER_TEXTS = [
    *((name, text) for name in ("config.json", "tokenizer_config.json", "generation_config.json")
      for text in ("[]", "5", "null", '"text"', "", BYTES)),
    *(("tokenizer.json", text) for text in ("[]", "{}", BYTES, '{"model": {"vocab": [1]}}')),
    ("chat_template.jinja", BYTES),
    ("tokenizer_config.json", '{"eos_token": 5}'),
    ("tokenizer_config.json", '{"eos_token": {"content": [5]}}'),
    ("config.json", '{"vocab_size": 512, "max_position_embeddings": 512, "text_config": "x"}'),
    ("config.json", '{"vocab_size": 512, "max_position_embeddings": 512, "num_experts": "8"}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), OTHER_TEXTS)
def test_a_text_of_another_form_is_named(doctor: Doctor, tmp_path: Path, name: str, text: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(SHIPPED_MODEL, model)
    (model / name).write_bytes(b"\xff\xfe" if text == BYTES else text.encode())
    code, told = doctor(tmp_path / "service", f"serving.model={model}")
    assert code == 1
    assert name in told


def test_a_spec_whose_late_outcomes_correct_nothing_is_named(doctor: Doctor, tmp_path: Path) -> None:
    spec = tmp_path / "old.toml"
    spec.write_text(SHIPPED_REWARDS.read_text().replace("\nneutral = 1", "\nneutral = 0"))
    code, told = doctor(tmp_path / "service", f"scoring.spec={spec}")
    assert code == 1, told
    assert "outcomes: survived_1d, survived_1h, survived_1w, survived_30s, survived_5m: what they add" in told


def test_a_judge_that_is_away_is_named(doctor: Doctor, tmp_path: Path) -> None:
    judge = ("judge.enabled=true", "judge.base_url=http://127.0.0.1:1/v1", "judge.model=m")
    code, told = doctor(tmp_path / "service", *judge)
    assert code == 1, told
    (line,) = [line for line in told.splitlines() if "wrong " in line]
    assert "judge.base_url" in line
    assert "unavailable" in line


def test_services_that_are_away_are_named(doctor: Doctor, tmp_path: Path) -> None:
    nowhere = "127.0.0.1:1"
    code, told = doctor(
        tmp_path / "service",
        "mode=distributed",
        "serving.engine=sglang",
        f"serving.sglang.urls=['http://{nowhere}']",
        f"kafka.bootstrap_servers=['{nowhere}']",
        f"postgres.url=postgresql://onward@{nowhere}/onward",
        f"redis.url=redis://{nowhere}/0",
    )
    assert code == 1
    wrong = [line for line in told.splitlines() if "wrong " in line]
    for name in ("Kafka", "Postgres", "Redis", "SGLang"):
        assert any(name in line for line in wrong), told


def test_the_proof_of_what_an_engine_loads_is_said(doctor: Doctor, tmp_path: Path) -> None:
    """Also of one that a host has started, as the store tells."""
    blobs, directory = FsspecBlobs(tmp_path / "blobs"), tmp_path / "service"
    settings = ("serving.engine=sglang", "serving.sglang.device=cuda", f"serving.sglang.python={sys.executable}")
    with weights_server(blobs) as server, weights_server(blobs, ranks=2) as two:
        server.loaded, two.loaded = [SHIPPED_MODEL], [SHIPPED_MODEL] * 2
        code, told = doctor(directory, *settings, f"serving.sglang.urls=['{server.url}', '{two.url}']")
        tensors, parts = len(server.of_rank(0)["checksums"]), len(two.of_rank(0)["checksums"])
        assert code == 0, told
        assert f"bytes computed from the files for {tensors} of {tensors} tensors; then the probe" in told
        assert re.search(rf"for \d+ of {2 * parts} tensors on 2 ranks, for the others what this engine said", told)
        assert "by name" not in told
        assert "merged" not in told, "nothing learns adapters"
        server.gives_checksums = False
        directory.mkdir(exist_ok=True)
        now, version = datetime.now(UTC), PolicyRef(BASE, 1)
        with closing(open_store(Layout(directory), Settings())) as store, store.work() as work:
            for name, url, at in (("one", server.url, now), ("gone", "http://gone", now - timedelta(hours=1))):
                work.fleet.put_status(
                    ReplicaStatus(name=name, cluster="local", url=url, state="ready", serving=version, heartbeat_at=at)
                )
        code, told = doctor(directory, *settings)
        assert code == 0, told
        assert "shown by the probe alone: the engine gives no checksums" in told


@pytest.mark.parametrize(
    ("most", "lora", "beside", "said"),
    [
        (8, "rank=8", ["all"], "loads adapters by name, up to rank 8"),
        (8, "targets=['mlp.down_proj']", ["down_proj"], "loads adapters by name, up to rank 8"),
        (None, "rank=8", ["all"], "each pauses the server: it was not started with --enable-lora"),
        (8, "rank=16", ["all"], "each pauses the server: its --max-lora-rank is 8, and the adapter's rank 16"),
        (8, "rank=8", ["q_proj"], "its --lora-target-modules lacks down_proj, gate_proj, k_proj,"),
        (8, "targets=['lm_head']", ["q_proj"], "its --lora-target-modules lacks lm_head"),
    ],
)
def test_doctor_says_how_an_engine_is_given_adapters(
    doctor: Doctor, tmp_path: Path, most: int | None, lora: str, beside: list[str], said: str
) -> None:
    settings = ("serving.engine=sglang", "serving.sglang.device=cuda", f"serving.sglang.python={sys.executable}")
    with weights_server(FsspecBlobs(tmp_path / "blobs")) as server:
        server.loaded, server.most_adapters, server.targets = [SHIPPED_MODEL], most, beside
        urls = f"serving.sglang.urls=['{server.url}']"
        code, told = doctor(tmp_path / "service", *settings, urls, "learner.lora.rank=8", f"learner.lora.{lora}")
    assert code == 0, told
    assert said in told


def test_a_damaged_log_is_named(doctor: Doctor, tmp_path: Path) -> None:
    directory = tmp_path / "service"
    directory.mkdir()
    (directory / "log.db").write_bytes(b"this is no database" * 1000)
    code, told = doctor(directory)
    assert code == 1
    assert "log.db" in told
    (directory / "log.db").unlink()
    sqlite3.connect(directory / "log.db").close()
    assert doctor(directory)[0] == 0


@pytest.mark.parametrize(("file", "blobs"), [("log.db", False), ("store.db", False), ("log.db", True)])
def test_looking_at_a_directory_that_is_there_makes_nothing(
    doctor: Doctor, tmp_path: Path, file: str, *, blobs: bool
) -> None:
    directory, archive = tmp_path / "service", tmp_path / "archive"
    for folder in (directory, archive, *([directory / "blobs"] if blobs else [])):
        folder.mkdir()
    (directory / file).touch()
    before = sorted(tmp_path.rglob("*"))
    code, told = doctor(directory, "archive.enabled=true", f"archive.url=file://{archive}")
    assert code == 0, told
    assert sorted(tmp_path.rglob("*")) == before


def test_the_archives_place_is_tried_where_it_is_used(doctor: Doctor, tmp_path: Path) -> None:
    code, told = doctor(tmp_path / "service", "archive.enabled=true", "archive.retention_days=30")
    assert code == 0, told
    assert "the log keeps 30 days" in told
    code, told = doctor(tmp_path / "service", "archive.enabled=true", "archive.url=/proc/nothing")
    assert code == 1
    (line,) = [line for line in told.splitlines() if "wrong " in line]
    assert "archive" in line
    assert "/proc" in line


def test_settings_that_take_more_than_the_machine_has_are_named(doctor: Doctor, tmp_path: Path) -> None:
    code, told = doctor(tmp_path / "service", "serving.local.slots=100000000")
    assert code == 1, told
    (line,) = [line for line in told.splitlines() if "wrong " in line]
    assert "profile" in line
    assert "serving.local.slots" in line


def test_a_base_that_adapters_do_not_stand_upon_is_named(doctor: Doctor, tmp_path: Path) -> None:
    adapter = AdapterConfig(base_digest="0" * 64, rank=1, alpha=1.0)
    version = PolicyRef(BASE, 2)
    manifest = WeightsManifest(version=version, digest="1" * 64, parent=None, shards=[], adapter=adapter)
    path = tmp_path / "service" / "blobs" / manifest_path(version)
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest.encode())
    code, told = doctor(tmp_path / "service")
    assert code == 1, told
    (line,) = [line for line in told.splitlines() if "wrong " in line]
    assert "stands upon weights 000000000000" in line


def test_metrics_that_need_a_key_are_asked_for_with_the_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [{"key": f"key-of-{name}", "namespace": name, "scopes": ["admin"]} for name in ("acme", "globex")]
    monkeypatch.setattr("onward.commands.client.find_certificate", lambda _: None)
    monkeypatch.delenv("ONWARD_KEY", raising=False)
    with serve(tmp_path / "service", keys=keys) as service:
        monkeypatch.setattr("onward.commands.client.find_urls", lambda _: [service.url])
        with pytest.raises(OnwardError, match=r"send an API key.*ONWARD_KEY"):
            samples(Layout(tmp_path))
        monkeypatch.setenv("ONWARD_KEY", "key-of-acme")
        assert "onward_feedback_to_served_seconds_count" in samples(Layout(tmp_path))


def test_keys_of_the_store_are_keys(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "service"
    create_key(directory, {}, {"namespace": "acme", "name": "plugin"})
    monkeypatch.setenv("ONWARD_API__USER_HASH_KEY", "of-our-own")
    code, told = doctor(directory, "api.host=0.0.0.0")
    assert code == 0, told
    assert "0 keys in the settings, 1 in force in the store" in told
