"""Settings come from the environment, then the file, then the defaults; unknown ones are refused."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from core.errors import ConfigError
from core.settings import AdmissionSettings, ApiKey, ApiSettings, Settings, load_settings
from core.settings.names import paths
from core.settings.processes import bounds_of_each
from onward.commands.options import overrides_of

KEEP_OUT = "ONWARD_LEARNER__ADMISSION__KEEP_OUT"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "onward.toml"
        path.write_text(text)
        return path

    return write


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    assert load_settings(None, {}) == Settings()
    assert load_settings(tmp_path / "missing.toml", {}) == Settings()


def test_the_environment_wins_over_the_file_over_the_default(file: Callable[[str], Path]) -> None:
    path = file("[api]\nport = 9000\nhost = '0.0.0.0'\n")
    settings = load_settings(path, {"ONWARD_API__PORT": "9001", "HOME": "/root", "ONWARD_REQUIRE_SERVICES": "1"})
    assert (settings.api.port, settings.api.host) == (9001, "0.0.0.0")
    assert settings.ingest == Settings().ingest


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("ONWARD_LEARNER__ENABLED", "false", lambda s: s.learner.enabled is False),
        ("ONWARD_LEARNER__OPTIMIZER__LEARNING_RATE", "1e-5", lambda s: s.learner.optimizer.learning_rate == 1e-5),
        ("ONWARD_SERVING__MODEL", "/models/tiny", lambda s: s.serving.model == Path("/models/tiny")),
        (
            "ONWARD_LEARNER__ADMISSION__MAX_OUTCOME_AGE_S",
            "{rating = 5.0}",
            lambda s: s.learner.admission.max_outcome_age_s == {"rating": 5.0},
        ),
        ("ONWARD_ROLLOUTS__REQUESTS__BASE_URL", "http://h:1/x/v1/", lambda s: s.rollouts.requests.base_url is not None),
        ("ONWARD_API__USER_HASH_KEY", "a = b", lambda s: s.api.user_hash_key == "a = b"),
    ],
)
def test_environment_values_are_read_as_what_they_are(name: str, text: str, read: Callable[[Settings], bool]) -> None:
    assert read(load_settings(None, {name: text}))


def test_keys_come_as_tables(file: Callable[[str], Path]) -> None:
    path = file("[[api.keys]]\nkey = 'secret-key'\nnamespace = 'team'\nscopes = ['chat']\n")
    assert load_settings(path, {}).api.keys == (ApiKey(key="secret-key", namespace="team", scopes=("chat",)),)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[api]\nprot = 1\n", r"api\.prot: Extra"),
        ("[nonsense]\n", "nonsense: Extra"),
        ("[ingest]\npartitions = 0\n", r"ingest\.partitions: "),
        ("[ingest]\npartitions = 'many'\n", r"ingest\.partitions: "),
        ("[rollouts.requests]\nbase_url = 'https://HOST'\n", r"rollouts\.requests\.base_url: .*/v1"),
        ("[rollouts]\nenabled = true\n", r"rollouts: .*task_sets: name at least one"),
        ("[learner.advantage]\nbaseline = 'best'\n", r"learner\.advantage\.baseline: "),
        ("mode = 'quantum'\n", "mode: "),
        ("[[api.keys]]\nkey = 'secret-key'\nnamespace = 'n'\nscope = ['chat']\n", r"api\.keys\.0\.scope: Extra"),
        ("api = 3\n", "api: "),
        ("[api\n", r"onward\.toml: "),
    ],
)
def test_what_is_wrong_in_the_file_is_named(file: Callable[[str], Path], text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(file(text), {})


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("ONWARD_API__PROT", "1", r"api\.prot: Extra"),
        ("ONWARD_NONSENSE", "1", "nonsense: Extra"),
        ("ONWARD_API__PORT", "high", r"api\.port: "),
        ("ONWARD_API__PORT__X", "1", r"api\.port"),
        ("ONWARD_MODE__X", "1", "mode"),
        ("ONWARD_SERVING__CLUSTER", "", r"serving\.cluster: "),
        ("ONWARD_SERVING__CLUSTER", "East 1", r"serving\.cluster: "),
        ("ONWARD_SERVING__CLUSTER", "e" * 33, r"serving\.cluster: "),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(name: str, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_settings(None, {name: text, **({"ONWARD_MODE": "embedded"} if "MODE__" in name else {})})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().api.port = 1  # type: ignore[misc]


def test_every_stage_refuses_what_it_does_not_know() -> None:
    for field in Settings.model_fields.values():
        if isinstance(field.default, BaseModel):
            assert field.default.model_config.get("extra") == "forbid"
            assert field.default.model_config.get("frozen") is True


@pytest.mark.parametrize(
    ("environment", "kept_out"),
    [
        ({}, []),
        ({"ONWARD_RELEASE__EVALS__SUITE": "asked"}, ["asked"]),
        ({"ONWARD_RELEASE__EVALS__SUITE": "asked", KEEP_OUT: "other"}, ["other", "asked"]),
        ({"ONWARD_RELEASE__EVALS__SUITE": "asked", KEEP_OUT: '["asked", "other"]'}, ["asked", "other"]),
        ({KEEP_OUT: "other"}, ["other"]),
    ],
)
def test_the_suite_that_versions_are_asked_is_always_kept_out_of_training(
    environment: dict[str, str], kept_out: list[str]
) -> None:
    settings = load_settings(None, {**environment, "ONWARD_LEARNER__SEED": "3"})
    assert (settings.learner.admission.keep_out, settings.learner.seed) == (tuple(map(Path, kept_out)), 3)


@pytest.mark.parametrize(("suites", "written"), [([], None), (["a"], "a"), (["a", "b"], ["a", "b"])])
def test_manifests_have_of_one_suite_what_former_builds_wrote(suites: list[str], written: object) -> None:
    known = AdmissionSettings.model_validate({"keep_out": suites})
    assert json.loads(known.model_dump_json())["keep_out"] == known.model_dump(mode="json")["keep_out"] == written
    assert AdmissionSettings.model_validate({"keep_out": written}) == known


# ------------------------------------------------------------------------------------------------ sections and names


def sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every section with its path."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            inner = type(field.default)
            yield f"{path}{name}", inner
            yield from sections(inner, f"{path}{name}.")


def test_no_section_has_more_than_fifteen_entries() -> None:
    """Entries are settings and inner sections. The top level instead has one section per stage and service."""
    counts = {path: len(section.model_fields) for path, section in sections(Settings)}
    assert not {path: count for path, count in counts.items() if count > 15}
    assert {name for name in paths(Settings) if "." not in name} == {"mode", "blobs"}


def test_a_section_may_be_given_in_both_ways(file: Callable[[str], Path]) -> None:
    settings = load_settings(file("[release]\ncanary = { share = 0.5 }\n"), {"ONWARD_RELEASE__CANARY__ENABLED": "on"})
    assert (settings.release.canary.share, settings.release.canary.enabled) == (0.5, "on")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("api.prot", "api.port"),
        ("learner.optimizer.learning_rte", "learner.optimizer.learning_rate"),
        ("learner.rank", "learner.lora.rank"),
        ("learner.learning_rate", "learner.optimizer.learning_rate"),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_that_was_probably_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(name)}: Extra .*\(is {re.escape(meant)} meant\?\)"):
        load_settings(None, overrides_of([f"{name}=1"]))


def test_a_value_in_a_sections_place_is_answered_with_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"learner\.users: a section, of max_share, .*distrust"):
        load_settings(None, {"ONWARD_LEARNER__USERS": "0.1"})


def test_what_is_like_nothing_is_answered_with_nothing() -> None:
    with pytest.raises(ConfigError, match="nonsense: Extra") as refused:
        load_settings(None, {"ONWARD_NONSENSE": "1"})
    assert "meant" not in str(refused.value)


def test_hosts_may_finish_what_is_under_way_before_they_are_ended() -> None:
    with pytest.raises(ConfigError, match=r"stages\.end_s is not more than serving\.sglang\.timeouts\.drain_s"):
        load_settings(None, {"ONWARD_SERVING__SGLANG__TIMEOUTS__DRAIN_S": "60"})
    load_settings(None, {"ONWARD_SERVING__SGLANG__TIMEOUTS__DRAIN_S": "60", "ONWARD_STAGES__END_S": "90"})


def test_replicas_of_the_api_have_parts_of_what_each_counts_by_itself() -> None:
    def bounds(api: ApiSettings, processes: int) -> tuple[int, ...]:
        of_one = bounds_of_each(api, processes)
        connections, bodies = of_one.connections, of_one.bodies
        megabytes = [
            each >> 20 for each in (bodies.in_flight_bytes, bodies.under_way_bytes, bodies.under_way_user_bytes)
        ]
        return connections.total, connections.per_address, *megabytes, of_one.low_priority.at_once

    assert bounds(ApiSettings(), 0) == bounds(ApiSettings(), 1) == (4096, 256, 64, 256, 64, 64)
    assert bounds(ApiSettings(), 2) == (2048, 128, 32, 128, 32, 32)
    tight = ApiSettings.model_validate(
        {
            "connections": {"total": 3, "per_address": 1},
            "bodies": {"in_flight_bytes": 5 << 20},
            "low_priority": {"at_once": 1},
        }
    )
    assert bounds(tight, 2) == (1, 1, 4, 128, 32, 1), "each serves somebody, and reads the largest body"
    assert bounds(ApiSettings.model_validate({"low_priority": {"at_once": 0}}), 2)[-1] == 0, "all are refused"
    assert bounds_of_each(tight, 2).connections.idle_s == tight.connections.idle_s
