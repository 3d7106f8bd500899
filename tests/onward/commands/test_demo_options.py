"""The demo passes its options about users and clients to the simulator, with the matching reward spec."""

from typing import Any

import pytest

from core.errors import ConfigError
from onward.commands.demo import Hacking, hacking
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
