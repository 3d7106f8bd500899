"""Bounds on each user's influence: what is left out, and that it shows."""

from types import ModuleType
from typing import Any

import pytest

from core import telemetry
from core.ids import UserHash
from core.reward_spec import RewardSpec

RATING = {"type": "number", "weight": 0.1, "aggregation": "sum"}


def spec_of(**defence: Any) -> RewardSpec:
    return RewardSpec.model_validate({"outcomes": {"rating": RATING}, "defence": defence})


def last(lab: ModuleType, spec: RewardSpec, log: list[Any]) -> Any:
    return lab.score(spec, log, until=lab.at(10_000))[-1]


def oddities(reason: str) -> float:
    return telemetry.SCORER_ODDITIES.labels(reason=reason)._value.get()


def test_a_burst_counts_up_to_its_bound_and_shows(lab: ModuleType, events: Any) -> None:
    turn = events.turn("s", 0)
    before = oddities("burst")
    log = [turn, *(events.outcome(turn, "rating", 1.0, 10 + second) for second in range(5))]
    reward = last(lab, spec_of(burst_outcomes=2, burst_window_s=60), log)
    assert (reward.value, len(reward.outcome_ids)) == (0.2, 2)
    log.append(events.outcome(turn, "rating", 1.0, 71))
    reward = last(lab, spec_of(burst_outcomes=2, burst_window_s=60), log)
    assert reward.value == pytest.approx(0.3)
    assert reward.why.endswith("; left out: 3 burst; corrects +0.20")
    assert oddities("burst") - before == 6
    assert last(lab, spec_of(), log).value == pytest.approx(0.6)


def test_users_are_counted_apart(lab: ModuleType, events: Any) -> None:
    turn = events.turn("s", 0)
    said = [events.outcome(turn, "rating", 1.0, 10 + place, user_id=UserHash(f"u{place % 2}")) for place in range(6)]
    assert last(lab, spec_of(burst_outcomes=2), [turn, *said]).value == pytest.approx(0.4)


def test_what_says_the_same_again_does_not_count(lab: ModuleType, events: Any) -> None:
    turn, other = events.turn("s", 0), events.turn("s", 1)
    log = [turn, other, *(events.outcome(turn, "rating", 1.0, 10 + second) for second in range(5))]
    log.append(events.outcome(turn, "rating", 0.5, 20))
    log.append(events.outcome(other, "rating", 1.0, 21))
    rewards = lab.score(spec_of(identical_outcomes=1), log, until=lab.at(10_000))
    values = lab.last_values(rewards)
    assert values == {turn.inference_id: pytest.approx(0.15), other.inference_id: pytest.approx(0.1)}
    assert any("left out: 4 repeated" in reward.why for reward in rewards)


def test_what_is_taken_back_makes_room_and_is_always_heard(lab: ModuleType, events: Any) -> None:
    turn = events.turn("s", 0)
    said = [events.outcome(turn, "rating", 1.0, 10 + second) for second in range(2)]
    spec = spec_of(identical_outcomes=1, burst_outcomes=2)
    log = [turn, *said, events.withdrawal(said[0], 12)]
    assert last(lab, spec, log).value == pytest.approx(0.1)
    assert last(lab, spec, [*log, events.withdrawal(said[1], 13)]).value == 0


def test_an_amendment_that_is_left_out_leaves_what_it_amends(lab: ModuleType, events: Any) -> None:
    turn = events.turn("s", 0)
    said = events.outcome(turn, "rating", 1.0, 10)
    log = [turn, said, events.amendment(said, -1.0, 11)]
    assert last(lab, spec_of(burst_outcomes=1), log).value == pytest.approx(0.1)


def test_an_outcome_read_late_may_leave_another_out(lab: ModuleType, events: Any) -> None:
    """The late outcome arrived first, so the one counted in its place no longer counts, on any turn."""
    first, second = events.turn("s", 0), events.turn("s", 1)
    late, prompt = events.outcome(first, "rating", 1.0, 10), events.outcome(second, "rating", 1.0, 11)
    for order in ([late, prompt], [prompt, late]):
        values = lab.last_values(lab.score(spec_of(burst_outcomes=1), [first, second, *order], until=lab.at(10_000)))
        assert {key: value for key, value in values.items() if value} == {first.inference_id: pytest.approx(0.1)}


def test_a_trim_shows(lab: ModuleType, events: Any) -> None:
    outcomes = {"rating": RATING | {"weight": 1.0, "aggregation": "mean", "trim": 0.2}}
    turn = events.turn("s", 0)
    said = [events.outcome(turn, "rating", value, 1) for value in (0.5, 0.5, 0.5, -1.0, 1.0)]
    reward = last(lab, RewardSpec.model_validate({"outcomes": outcomes}), [turn, *said])
    assert reward.value == 0.5
    assert "; left out: 2 of 5 rating trimmed" in reward.why


def test_scopes_have_a_defence_of_their_own(lab: ModuleType, events: Any) -> None:
    spec = RewardSpec.model_validate(
        {"outcomes": {"rating": RATING}, "scopes": [{"workload": "write", "defence": {"burst_outcomes": 1}}]}
    )
    turns = [events.turn("s", 0), events.turn("t", 0, workload="fix")]
    said = [events.outcome(turn, "rating", 1.0, 5 + second) for turn in turns for second in range(2)]
    values = lab.last_values(lab.score(spec, [*turns, *said], until=lab.at(10_000)))
    assert list(values.values()) == [pytest.approx(0.1), pytest.approx(0.2)]
