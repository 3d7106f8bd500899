"""`onward init` writes settings that fit, and nothing where it cannot."""

from pathlib import Path

import pytest
from model_configs import TINY, complete
from shown_examples import OWN_MODEL, commands, of_test

from core.errors import ConfigError
from core.settings import Settings, load_settings
from onward.cli import app
from onward.profiles.init import init, profile_of


def made_of(tmp_path: Path, name: str) -> Path:
    return complete(tmp_path / "models", name)


def test_the_file_says_what_was_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made_of(tmp_path, "smollm2-135m")
    init(tmp_path / "service", model, "cpu", memory_gb=24, num_cards=None)
    settings = load_settings(tmp_path / "service" / "onward.toml", {})
    assert settings.serving.model == model
    assert settings.serving.model_name == "smollm2-135m"
    assert settings.learner.lora.rank == 16
    assert settings.learner.optimizer.learning_rate == 6e-4
    told = capsys.readouterr().out
    assert "134,515,008 parameters" in told
    assert "memory of the learner" in told
    for choice in profile_of(model, "cpu", memory_gb=24)[2].choices:
        assert choice.why in told, "no line is folded where nobody looks"


def test_settings_for_cards_are_read_back(tmp_path: Path) -> None:
    init(tmp_path / "service", made_of(tmp_path, "qwen3-8b"), "cuda", memory_gb=80, num_cards=1)
    serving = load_settings(tmp_path / "service" / "onward.toml", {}).serving
    assert serving.engine == "sglang"
    assert serving.sglang.arguments[0] == "--mem-fraction-static"


def test_the_shipped_model_keeps_the_defaults(tmp_path: Path) -> None:
    init(tmp_path / "service", TINY, "cpu", memory_gb=8, num_cards=None)
    settings = load_settings(tmp_path / "service" / "onward.toml", {})
    changed = settings.serving.model_copy(update={"model": None, "model_name": Settings().serving.model_name})
    assert settings.model_copy(update={"serving": changed}) == Settings()


def test_what_the_page_shows_can_be_done_with_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What docs/your-own-model.md begins with, and the shipped model for one of 16 GB; the last is `make run`'s."""
    monkeypatch.chdir(tmp_path)
    made, looked, run = commands(of_test(OWN_MODEL, "docs/your-own-model.md"), {"/models/Qwen3-8B": TINY})
    app(made[1:], result_action="return_value")
    assert load_settings(tmp_path / "data" / "onward.toml", {}).serving.model == TINY
    with pytest.raises(SystemExit) as ended:
        app(looked[1:], result_action="return_value")
    assert ended.value.code == 0, capsys.readouterr().out
    assert run == ["onward", "run", "data"]


def test_settings_that_are_there_stay(tmp_path: Path) -> None:
    init(tmp_path / "service", TINY, "cpu", memory_gb=8, num_cards=None)
    before = (tmp_path / "service" / "onward.toml").read_bytes()
    with pytest.raises(ConfigError, match="not overwritten"):
        init(tmp_path / "service", made_of(tmp_path, "qwen3-8b"), "cpu", memory_gb=500, num_cards=None)
    assert (tmp_path / "service" / "onward.toml").read_bytes() == before


def test_an_empty_file_that_says_which_directory_is_meant_is_filled(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"onward\.toml"):
        init(tmp_path, TINY, "cpu", memory_gb=8, num_cards=None)
    (tmp_path / "onward.toml").touch()
    init(tmp_path, TINY, "cpu", memory_gb=8, num_cards=None)
    assert load_settings(tmp_path / "onward.toml", {}).serving.model == TINY


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])  # any weights will do
def test_a_missing_file_is_named_and_nothing_is_written(tmp_path: Path, missing: str) -> None:
    model = made_of(tmp_path, "smollm2-135m")
    (model / missing).unlink()
    with pytest.raises(ConfigError, match=missing.removeprefix("model.")):
        init(tmp_path / "service", model, "cpu", memory_gb=24, num_cards=None)
    assert not (tmp_path / "service").exists()


def test_a_model_that_does_not_fit_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        init(tmp_path / "service", made_of(tmp_path, "qwen3-32b"), "cuda", memory_gb=80, num_cards=1)
    assert not (tmp_path / "service").exists()


def test_cards_that_nobody_described_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    with pytest.raises(ConfigError, match="--memory-gb"):
        init(tmp_path / "service", made_of(tmp_path, "qwen3-8b"), "cuda", memory_gb=None, num_cards=None)
