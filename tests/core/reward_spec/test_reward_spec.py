"""Reward specs are compared by meaning, not by spelling, and nonsense is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.reward_spec import RewardSpec, load_reward_spec

GOOD = """
clip = [-1.0, 1.0]
[outcomes.accepted]
type = "boolean"
weight = 1.0
false_weight = -0.5
wait_s = 3.0
default = false
[outcomes.rating]
type = "number"
weight = 0.2
minimum = 0.0
maximum = 5.0
[outcomes.comment]
type = "text"
"""


def test_a_spec_is_read(file: Callable[[str], Path]) -> None:
    spec = load_reward_spec(file(GOOD))
    assert spec.outcomes["accepted"].false_weight == -0.5
    assert spec.outcomes["accepted"].default is False
    assert spec.outcomes["rating"].aggregation == "last"
    assert spec.session.credit == "equal"


def test_the_shipped_spec_is_good() -> None:
    spec = load_reward_spec(Path(__file__).resolve().parents[3] / "onward" / "rewards.toml")
    assert {"accepted", "rejected", "edited", "tests_passed", "follow_up", "rating"} <= spec.outcomes.keys()
    said = {name: outcome.meaning or "" for name, outcome in spec.outcomes.items()}
    assert not [name for name, meaning in said.items() if "Send " not in meaning], "what it means, and when to send it"


def test_comments_and_order_do_not_change_the_digest(file: Callable[[str], Path]) -> None:
    spec = load_reward_spec(file(GOOD))
    head, accepted, rating, comment = GOOD.strip().split("\n[")
    shuffled = "\n[".join([f"# of March\n{head}", comment, rating, accepted])
    assert load_reward_spec(file(shuffled)).digest == spec.digest
    assert load_reward_spec(file(GOOD.replace("0.2", "0.20"))).digest == spec.digest
    explained = load_reward_spec(file(GOOD + 'meaning = " What the user says. "\n'))
    assert (explained.outcomes["comment"].meaning, explained.digest) == ("What the user says.", spec.digest)


@pytest.mark.parametrize("change", [("0.2", "0.3"), ("default = false", "default = true"), ("rating", "stars")])
def test_any_change_of_meaning_changes_the_digest(file: Callable[[str], Path], change: tuple[str, str]) -> None:
    assert load_reward_spec(file(GOOD.replace(*change))).digest != load_reward_spec(file(GOOD)).digest


def test_a_default_that_is_written_out_is_no_change(file: Callable[[str], Path]) -> None:
    spec = load_reward_spec(file(GOOD))
    assert RewardSpec.model_validate(spec.model_dump()).digest == spec.digest


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[outcomes.a]\ntype = 'boolean'\nwieght = 1.0\n", r"outcomes\.a\.wieght: Extra"),
        ("[outcomes.a]\ntype = 'colour'\n", r"outcomes\.a\.type: "),
        ("[outcomes.a]\nweight = 1.0\n", r"outcomes\.a\.type: Field required"),
        ("[outcomes.a]\ntype = 'boolean'\nmeaning = ' '\n", r"outcomes\.a\.meaning: .*at least 1 character"),
        ("[outcomes.a]\ntype = 'text'\nweight = 1.0\n", r"outcomes\.a: .*text outcome has no weight"),
        ("[outcomes.a]\ntype = 'boolean'\ndefault = 1.5\n", r"outcomes\.a: .*default of a boolean"),
        ("[outcomes.a]\ntype = 'number'\ndefault = true\n", r"outcomes\.a: .*default of a number"),
        ("[outcomes.a]\ntype = 'number'\nfalse_weight = 1.0\n", r"outcomes\.a: .*false_weight"),
        ("[outcomes.a]\ntype = 'boolean'\nwait_s = -1.0\n", r"outcomes\.a\.wait_s: "),
        ("[outcomes.a]\ntype = 'boolean'\nwait_s = inf\n", r"outcomes\.a\.wait_s: "),
        ("[outcomes.a]\ntype = 'boolean'\nweight = 1\nwait_s = 1e12\n", r"outcomes\.a\.wait_s: "),
        ("[outcomes.a]\ntype = 'boolean'\nweight = 1e13\n", r"outcomes\.a\.weight: "),
        ("[outcomes.a]\ntype = 'number'\nweight = 1\nmaximum = 1e300\n", r"outcomes\.a\.maximum: "),
        ("clip = [-1e300, 1.0]\n[outcomes.a]\ntype = 'boolean'\nweight = 1\n", "line 1: clip"),
        ("[outcomes.a]\ntype = 'number'\nweight = nan\n", r"outcomes\.a\.weight"),
        ("[outcomes.a]\ntype = 'number'\nminimum = 1\nmaximum = 0\n", "ascend"),
        ("[outcomes.a]\ntype = 'number'\ndefault = 3\nmaximum = 1\n", "ascend"),
        ("[outcomes.a]\ntype = 'boolean'\nmaximum = 1\n", "number outcomes"),
        ("outcomes = 3\n", "outcomes"),
        ("clip = [1.0, 0.0]\n[outcomes]\n", "lower bound"),
        ("", "outcomes: Field required"),
        ("[outcomes.a]\ntype = 'boolean'\n", "line 1: .*none has a weight"),
        ("[outcomes.a]\ntype = 'number'\nweight = 1\nminimum = 0\nmaximum = 0\n", "line 1: .*none has a weight"),
        ("clip = [0, 1]\n[outcomes.a]\ntype = 'boolean'\nweight = -1\n", "line 1: .*clip: what outcomes can add"),
        ("\nclip = [-1, 0]\n[outcomes.a]\ntype = 'boolean'\nweight = 1\n", "line 2: .*clip: what outcomes can add"),
        (GOOD + "[effort]\nk = 5e-324\n", r"line 17: effort\.k: 4.*divides by nearly zero"),
        (GOOD + "[effort]\nq = 0.99999999999999\n", r"line 17: effort\.q: .*divides by nearly zero"),
        (GOOD + "[[scopes]]\nworkload = 'x'\nclip = [-9, -8]\n", r"line 16: .*workload x.*clip"),
        ("[outcomes", ""),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(file: Callable[[str], Path], text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=r"rewards\.toml: .*" + named):
        load_reward_spec(file(text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml: cannot be read"):
        load_reward_spec(tmp_path / "nothing.toml")
