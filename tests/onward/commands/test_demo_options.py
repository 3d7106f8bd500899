"""The demo passes its options about users and clients to the simulator, with the matching reward spec."""

from pathlib import Path
from typing import Any

import pytest
from model_configs import complete

from core.errors import ConfigError
from core.settings import load_settings
from onward.commands import demo
from onward.commands.demo import Hacking, hacking, pretrained_settings, run_pretrained_demo
from onward.profiles.init import init
from simulator.exploits import EXPLOITS

HONEST: dict[str, Any] = {"liars": 0.0, "lie": "invert", "spammers": 0.0, "spam": "random", "users": 100}


def test_without_options_nothing_is_handed_on() -> None:
    assert hacking(None, **HONEST) == Hacking()


def test_an_exploit_brings_its_reward_spec() -> None:
    made = hacking("questions", **HONEST)
    assert made == Hacking(("--exploit", "questions"), EXPLOITS["questions"].spec())
    assert "default_reward" in made.spec


def test_a_crowd_is_handed_on_whole() -> None:
    options = hacking(None, **HONEST | {"liars": 0.1, "lie": "style"}).options
    assert " ".join(options) == "--liars 0.1 --lie style --spammers 0.0 --spam random --users 100"


@pytest.mark.parametrize(
    ("exploit", "change", "message"),
    [
        ("mind_reading", {}, "--exploit: mind_reading is unknown: choose one of dropped_calls"),
        (None, {"liars": 1.2}, "--liars: 1.2 is not a share between 0 and 1"),
        (None, {"spammers": 0.001}, "--spammers: 0.001 of 100 users is nobody"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_option(
    exploit: str | None, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        hacking(exploit, **HONEST | change)


UNFIT = {"--shift": False, "--rate": False, "--liars": False}


def test_users_of_the_tiny_model_have_options_that_others_have_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--shift, --liars: only for the tiny model's users"):
        run_pretrained_demo(
            tmp_path, seconds=None, seed=0, overrides={}, unfit=UNFIT | {"--shift": True, "--liars": True}
        )


def test_without_the_pretrained_model_its_demo_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "PRETRAINED_MODEL", tmp_path / "smollm2")
    kept = tmp_path / "service" / "kept"
    kept.parent.mkdir()
    kept.touch()
    with pytest.raises(ConfigError, match=r"smollm2 is not there: `make smollm2` makes it"):
        run_pretrained_demo(tmp_path, seconds=None, seed=0, overrides={}, unfit=UNFIT)
    assert kept.exists(), "an earlier demo is not lost by a demo that cannot begin"


def test_the_pretrained_model_learns_as_a_profile_of_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = complete(tmp_path, "smollm2-135m")
    monkeypatch.setattr(demo, "PRETRAINED_MODEL", model)
    settings = load_settings(None, pretrained_settings(seed=7))
    init(tmp_path / "service", model, "cpu", memory_gb=None, num_cards=None)
    profile = load_settings(tmp_path / "service" / "onward.toml", {})
    assert settings.learner == profile.learner.model_copy(update={"seed": 7})
    assert settings.learner.lora.rank == 16
    assert settings.serving.local == profile.serving.local
    assert (settings.serving.model, settings.serving.model_name) == (model, "smollm2")
