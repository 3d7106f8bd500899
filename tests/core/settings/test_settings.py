"""Settings come from the environment, then the file, then the defaults; what nobody knows is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from core.errors import ConfigError
from core.settings import ApiKey, Settings, load_settings


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
        ("ONWARD_LEARNER__LEARNING_RATE", "1e-5", lambda s: s.learner.learning_rate == 1e-5),
        ("ONWARD_SERVING__MODEL", "/models/tiny", lambda s: s.serving.model == Path("/models/tiny")),
        (
            "ONWARD_LEARNER__MAX_OUTCOME_AGE_S",
            "{rating = 5.0}",
            lambda s: s.learner.max_outcome_age_s == {"rating": 5.0},
        ),
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
        ("[learner]\nadvantage = 'best'\n", r"learner\.advantage: "),
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
        ({}, None),
        ({"ONWARD_RELEASE__EVALS__SUITE": "asked"}, Path("asked")),
        ({"ONWARD_RELEASE__EVALS__SUITE": "asked", "ONWARD_LEARNER__KEEP_OUT": "other"}, Path("other")),
        ({"ONWARD_LEARNER__KEEP_OUT": "other"}, Path("other")),
    ],
)
def test_the_suite_that_versions_are_asked_is_kept_out_of_training(
    environment: dict[str, str], kept_out: Path | None
) -> None:
    settings = load_settings(None, {**environment, "ONWARD_LEARNER__SEED": "3"})
    assert (settings.learner.keep_out, settings.learner.seed) == (kept_out, 3)
