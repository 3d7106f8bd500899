"""Metrics by config: type, level, optimize, waits, defaults and aggregation."""

import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError
from core.ids import UserHash
from core.reward_spec import DefenceSpec, RewardSpec, load_reward_spec
from core.reward_spec.late_outcomes import require_that_they_correct
from onward.directory.layout import SHIPPED_REWARDS


def spec_of(outcomes: dict[str, dict[str, Any]], **parts: object) -> RewardSpec:
    return RewardSpec.model_validate({"outcomes": outcomes, **parts})


def value_of(lab: ModuleType, spec: RewardSpec, said: list[tuple[str, Any]]) -> float:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, *(events.outcome(turn, name, value, 1 + place) for place, (name, value) in enumerate(said))]
    return float(lab.score(spec, log, until=lab.at(10_000))[-1].value)


def test_types_have_two_names() -> None:
    ours = spec_of({"a": {"type": "number", "weight": 1}, "b": {"type": "text"}, "c": {"type": "text"}})
    theirs = spec_of({"a": {"type": "float", "weight": 1}, "b": {"type": "comment"}, "c": {"type": "demonstration"}})
    assert ours.digest == theirs.digest


@pytest.mark.parametrize(("optimize", "expected"), [("max", 0.2), ("min", -0.2)])
def test_less_may_be_better(lab: ModuleType, optimize: str, expected: float) -> None:
    spec = spec_of({"latency": {"type": "float", "weight": 0.1, "optimize": optimize}})
    assert value_of(lab, spec, [("latency", 2.0)]) == pytest.approx(expected)
    spec = spec_of({"slow": {"type": "boolean", "weight": 0.2, "optimize": optimize}})
    assert value_of(lab, spec, [("slow", True)]) == expected


def test_a_default_reward_stands_in_for_silence(lab: ModuleType) -> None:
    spec = spec_of({"used": {"type": "boolean", "weight": 0, "default_reward": -0.3, "wait_s": 10}})
    turn = lab.Events().turn("s", 0)
    assert lab.score(spec, [turn], until=lab.at(9)) == []
    (reward,) = lab.score(spec, [turn], until=lab.at(10))
    assert (reward.value, reward.components) == (-0.3, {"used": -0.3})
    assert value_of(lab, spec, [("used", True)]) == 0.0


@pytest.mark.parametrize(("level", "counts"), [("inference", [False, True]), ("session", [True, False])])
def test_a_level_says_what_it_is_said_of(lab: ModuleType, level: str, counts: list[bool]) -> None:
    spec = spec_of({"good": {"type": "boolean", "weight": 1, "level": level, "decides": True}})
    events = lab.Events()
    turn = events.turn("s", 0)
    for about, counted in zip(("s", turn), counts, strict=True):
        assert bool(lab.score(spec, [turn, events.outcome(about, "good", True, 1)])) == counted


def test_a_trimmed_mean_leaves_the_extremes_out(lab: ModuleType) -> None:
    spec = spec_of({"rating": {"type": "float", "weight": 1, "aggregation": "mean", "trim": 0.25}})
    said = [0.2, 1.0, 0.4, -1.0]
    assert value_of(lab, spec, [("rating", value) for value in said]) == pytest.approx(0.3)
    assert value_of(lab, spec, [("rating", value) for value in said[:2]]) == 0.6


def test_a_share_that_was_taken_says_more_than_that_it_was(lab: ModuleType) -> None:
    spec = load_reward_spec(SHIPPED_REWARDS)
    assert value_of(lab, spec, [("accepted", True), ("partially_accepted", 0.25)]) == 0.25


@pytest.mark.parametrize("age", ["30s", "5m", "1h", "1d", "1w"])
@pytest.mark.parametrize("first", [("accepted", True), ("partially_accepted", 0.5), ("edited", 0.8)])
def test_what_is_gone_later_is_worth_less_than_what_was_kept(
    lab: ModuleType, first: tuple[str, bool | float], age: str
) -> None:
    spec = load_reward_spec(SHIPPED_REWARDS)
    gone, half, kept = (value_of(lab, spec, [first, (f"survived_{age}", share)]) for share in (0.0, 0.5, 1.0))
    assert gone < half < kept == value_of(lab, spec, [first])
    require_that_they_correct(spec)


def test_a_neutral_value_adds_nothing_wherever_it_comes_from(lab: ModuleType) -> None:
    spec = spec_of({"kept": {"type": "float", "weight": 0.5, "neutral": 1, "default": 0, "wait_s": 10}})
    assert value_of(lab, spec, []) == -0.5
    assert value_of(lab, spec, [("kept", 1.0)]) == 0.0
    discounted = spec_of(
        {"kept": {"type": "float", "weight": 0.5, "neutral": 1}}, session={"credit": "discounted", "discount": 0.5}
    )
    events = lab.Events()
    log = [events.turn("s", 0), events.turn("s", 1), events.outcome("s", "kept", 0.0, 2)]
    assert sorted(reward.value for reward in lab.score(discounted, log)) == [-0.5, -0.25]


def test_the_shipped_spec_has_every_kind_of_outcome(lab: ModuleType) -> None:
    spec = load_reward_spec(SHIPPED_REWARDS)
    kinds = "accepted rejected partially_accepted edited survived_30s survived_5m survived_1h survived_1d survived_1w "
    kinds += "reverted tests_passed "
    kinds += "build_passed lint_passed follow_up regenerated abandoned latency_felt rating plan_useful answer_useful "
    kinds += "task_reward infrastructure_failure out_of_time judgement comment demonstration shown"
    assert spec.outcomes.keys() == set(kinds.split())
    assert value_of(lab, spec, [("latency_felt", 1.0), ("comment", "slow"), ("answer_useful", True)]) == 0.4


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ("optimize = 'min'\nweight = -1", "optimize min"),
        ("weight = 1\ndefault = 1\ndefault_reward = 1", "twice"),
        ("weight = 1\ntrim = 0.1", "aggregation mean"),
        ("weight = 1\ntrim = 0.5\naggregation = 'mean'", "less than 0.5"),
        ("weight = 1\nlevel = 'episode'", "level"),
        ("weight = 1\nmeasure = 'guess'", "measure"),
        ("weight = 1\nneutral = 2\nmaximum = 1", "neutral"),
    ],
)
def test_entries_that_make_no_sense_are_refused_with_the_line(tmp_path: Any, entries: str, why: str) -> None:
    path = tmp_path / "rewards.toml"
    path.write_text(f"[outcomes.a]\ntype = 'float'\n{entries}\n")
    with pytest.raises(ConfigError, match=rf"line \d: outcomes.a.*{why}"):
        load_reward_spec(path)


DEFENCE = DefenceSpec(burst_outcomes=3, burst_window_s=10, identical_outcomes=1)
EVERY_KIND = spec_of(
    {
        name: {"type": "float", "weight": 0.3, "aggregation": name, "minimum": -1, "maximum": 1}
        for name in ("earliest", "last", "mean", "sum", "min", "max")
    }
    | {
        "trimmed": {"type": "float", "weight": 0.2, "aggregation": "mean", "trim": 0.2},
        "latency": {"type": "float", "weight": 0.1, "optimize": "min", "default_reward": -0.05},
        "partially_accepted": {"type": "float", "weight": 0.5, "minimum": 0, "maximum": 1},
        "accepted": {"type": "boolean", "weight": 0.5},
        "rejected": {"type": "boolean", "weight": 0.5, "optimize": "min"},
        "of_turns": {"type": "boolean", "weight": 0.2, "level": "inference"},
        "of_sessions": {"type": "boolean", "weight": 0.2, "level": "session"},
        "comment": {"type": "comment"},
    },
    clip=(-9, 9),
    session={"idle_timeout_s": 60},
)


def said_of_every_kind(lab: ModuleType, rng: random.Random) -> tuple[list[Any], list[Any]]:
    """Return turns and random outcomes of them, with amendments, withdrawals and invalid values."""
    events = lab.Events()
    turns = [events.turn("s", second) for second in range(3)]
    said: list[Any] = []
    for second in range(10, 40):
        name = rng.choice(list(EVERY_KIND.outcomes))
        kind = EVERY_KIND.outcomes[name].type
        value = rng.choice([-1.0, -0.3, 0.2, 1.0]) if kind == "number" else rng.random() < 0.5
        about = rng.choice([*turns, "s"])
        user = rng.choice([None, UserHash("u"), UserHash("v")])
        outcome = events.outcome(about, name, "words" if kind == "text" else value, second, user_id=user)
        if said and rng.random() < 0.3:
            before = rng.choice(said)
            if not before.withdrawn:
                outcome = events.withdrawal(before, second) if rng.random() < 0.3 else before
        said.append(outcome)
    return turns, said


@settings(max_examples=40, deadline=None)
@given(rng=st.randoms(use_true_random=False), defended=st.booleans(), early=st.booleans())
def test_order_and_repetition_of_any_kind_change_no_last_value(
    lab: ModuleType, rng: random.Random, defended: bool, early: bool
) -> None:
    spec = EVERY_KIND.model_copy(update={"defence": DEFENCE}) if defended else EVERY_KIND
    turns, said = said_of_every_kind(lab, rng)
    expected = lab.last_values(lab.score(spec, [*turns, *said], until=lab.at(10_000)))
    mixed = [*(turns if not early else []), *rng.sample([*said, *rng.sample(said, 10)], len(said) + 10)]
    if early:  # a turn comes after some of what was said of it
        for turn in turns:
            mixed.insert(rng.randrange(len(mixed)), turn)
    found = lab.score(spec, mixed, batch=rng.choice([1, 7, 1000]), until=lab.at(10_000))
    assert known(lab.last_values(found)) == known(expected)


def known(values: dict[str, float]) -> dict[str, float]:
    """Drop zeros: a withdrawn outcome leaves a zero, or nothing if no reward was made in between."""
    return {inference_id: value for inference_id, value in values.items() if value}
