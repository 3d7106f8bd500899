"""Guards: each trips on its own fault soon, and on nothing else."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import Alarm
from core.ids import InferenceId
from core.settings import CanarySettings
from serving.releases.canaries.crowd import crowd_of
from serving.releases.canaries.guards import ALARMED, ALPHA, LEAST_TURNS, tripped
from serving.releases.canaries.observations import ServedTurn
from serving.releases.canaries.recent import RecentTurns

numbers = count()


def turn(user: int = 0, **changed: Any) -> ServedTurn:
    """Return a good turn."""
    number = next(numbers)
    made = ServedTurn(
        inference_id=InferenceId(str(number)),
        unit=f"user {user}",
        experiment_id="experiment",
        arm="live",
        arm_assigned="live",
        version=1,
        received_at_s=float(number),
        workload="write",
        purpose="turn",
        finish_reason="stop",
        invalid_call=False,
        latency_ms=1000.0,
        ttft_ms=None,
        tokens=20,
        empty=False,
        over_long=False,
    )
    return msgspec.structs.replace(made, **changed)


def turns(number: int, fault: dict[str, Any] | None = None, every: int = 2, **changed: Any) -> list[ServedTurn]:
    """Return turns of as many users, of which each `every`th has the fault."""
    return [turn(i, **changed, **(fault if fault and i % every == 0 else {})) for i in range(number)]


FAULTS: dict[str, dict[str, Any]] = {
    "error_rate": {"finish_reason": "error"},
    "invalid_tool_calls": {"invalid_call": True},
    "empty_answers": {"empty": True},
    "over_long_answers": {"finish_reason": "length", "over_long": True},
    "latency": {"latency_ms": 20_000.0},
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_guard_trips_over_its_fault_within_tens_of_turns(name: str) -> None:
    every = 1 if name == "latency" else 2  # what is slow is slow in each turn
    why = tripped(turns(60, FAULTS[name], every), turns(240))
    assert why is not None
    assert why.startswith(f"{name} in write: ")


@pytest.mark.parametrize("name", FAULTS)
def test_no_guard_trips_over_what_was_there_before(name: str) -> None:
    assert tripped(turns(400, FAULTS[name]), turns(1600, FAULTS[name])) is None
    assert tripped(turns(400), turns(1600, FAULTS[name])) is None


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_said_of_a_few_turns(name: str) -> None:
    all_bad = {"every": 1}
    assert tripped(turns(LEAST_TURNS - 1, FAULTS[name], **all_bad), turns(240)) is None
    assert tripped(turns(240, FAULTS[name], **all_bad), turns(LEAST_TURNS - 1)) is None
    assert tripped([], []) is None


@pytest.mark.parametrize("name", ["error_rate", "empty_answers", "over_long_answers"])
def test_a_fault_rare_enough_not_to_matter_trips_nothing(name: str) -> None:
    assert tripped(turns(500, FAULTS[name], every=100), turns(2000)) is None


def test_a_certain_difference_must_also_be_shown_to_matter() -> None:
    """An eighth of answers cut off against none is surely more, but not surely more by the tolerated tenth."""
    assert tripped(turns(800, FAULTS["over_long_answers"], every=8), turns(3200)) is None
    assert tripped(turns(800, FAULTS["over_long_answers"], every=4), turns(3200)) is not None


def test_silence_is_no_fault_of_suggestions_and_of_turns_it_is() -> None:
    silent = {"empty": True, "tokens": 0}
    assert tripped(turns(300, silent, purpose="suggestion"), turns(1200, purpose="suggestion")) is None
    assert tripped(turns(300, silent), turns(1200)) is not None


def test_a_broken_call_is_a_fault_of_turns_alone() -> None:
    fault = FAULTS["invalid_tool_calls"]
    assert tripped(turns(300, fault, purpose="summary"), turns(1200, purpose="summary")) is None


def test_a_user_who_went_is_nobodys_fault() -> None:
    gone = {"finish_reason": "abort", "empty": True, "invalid_call": True, "latency_ms": 1e6}
    assert tripped(turns(300, gone), turns(1200)) is None


def test_an_error_is_counted_once_and_not_as_an_empty_answer() -> None:
    why = tripped(turns(200, {"finish_reason": "error", "empty": True}), turns(800))
    assert why is not None
    assert why.startswith("error_rate")
    rare = {"finish_reason": "error", "empty": True, "over_long": True}
    assert tripped(turns(500, rare, every=100), turns(2000)) is None


def test_one_after_the_other_is_not_a_comparison_of_pace() -> None:
    slow = turns(60, FAULTS["latency"], every=1)
    assert tripped(slow, turns(240)) is not None
    assert tripped(slow, turns(240), slower_times=None) is None


def test_how_much_slower_is_tolerated_is_a_setting() -> None:
    slow = turns(60, FAULTS["latency"], every=1)  # 20 times
    assert tripped(slow, turns(240), slower_times=10.0) is not None
    assert tripped(slow, turns(240), slower_times=50.0) is None


def test_how_long_low_priority_takes_is_no_fault_of_a_version() -> None:
    assert tripped(turns(60, FAULTS["latency"] | {"waited_for": False}, every=1), turns(240)) is None


def test_latency_is_that_of_a_token() -> None:
    long_answers = {"latency_ms": 20_000.0, "tokens": 400}
    assert tripped(turns(300, long_answers), turns(1200)) is None
    silent = {"latency_ms": 20_000.0, "tokens": 0, "purpose": "suggestion"}
    assert tripped(turns(300, silent), turns(1200)) is None


def test_workloads_are_compared_each_with_itself() -> None:
    """More turns of a slow workload do not make a canary slower, and a fault in a small workload is seen."""
    slow = {"workload": "fix", "latency_ms": 20_000.0, "finish_reason": "length", "over_long": True}
    assert tripped([*turns(100), *turns(300, **slow)], [*turns(1500), *turns(100, **slow)]) is None
    assert tripped([*turns(100), *turns(300, **slow)], turns(1500)) is None
    why = tripped(
        [*turns(900), *turns(60, FAULTS["error_rate"], workload="fix")], [*turns(900), *turns(240, workload="fix")]
    )
    assert why is not None
    assert why.startswith("error_rate in fix")


def test_a_few_users_whose_every_request_fails_are_no_broken_version() -> None:
    """Two of sixty users have a third of the turns; the same share over all users would trip."""
    failing = [turn(user, finish_reason="error") for user in (0, 1) for _ in range(30)]
    fine = [turn(user) for user in range(2, 60) for _ in range(2)]
    assert tripped([*failing, *fine], turns(800)) is None
    assert tripped(turns(176, FAULTS["error_rate"], every=3), turns(800)) is not None


# ---------------------------------------------------------------------------------------------- one hostile user


def cut_short(user: int, **changed: Any) -> ServedTurn:
    """Return a turn that asked for one token."""
    return turn(user, finish_reason="length", over_long=True, tokens=1, **changed)


HOSTILE: dict[str, Callable[[int, str], ServedTurn]] = {
    "asks for one token": lambda user, workload: cut_short(user, workload=workload),
    **{
        name: (lambda user, workload, fault=fault: turn(user, workload=workload, **fault))
        for name, fault in FAULTS.items()
    },
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("workloads", [["hers"], ["write"], [f"hers {number}" for number in range(40)]], ids=len)
def test_one_user_takes_no_version_back(name: str, workloads: list[str]) -> None:
    """However many turns she has, and in however many workloads: before the version came, all of hers were good."""
    for others, each in ((3, 20), (8, 1), (40, 1), (200, 1)):
        mine = [HOSTILE[name](999, workload) for workload in workloads for _ in range(1000 // len(workloads))]
        hers = [turn(999, workload=workload) for workload in workloads for _ in range(1000 // len(workloads))]
        new, old = ([turn(user) for user in range(others) for _ in range(each)] for _ in range(2))
        assert tripped([*new, *mine], [*old, *hers]) is None


def test_one_user_hides_no_fault_of_a_version_either() -> None:
    for name, fault in FAULTS.items():
        new = [*turns(60, fault, every=1), *(turn(999) for _ in range(2000))]
        old = [*turns(240), *(turn(999) for _ in range(2000))]
        why = tripped(new, old)
        assert why is not None
        assert why.startswith(f"{name} in write: ")


def test_faults_of_workloads_that_have_a_user_each_are_seen_together() -> None:
    new = [turn(user, workload=f"of {user}", **FAULTS["error_rate"]) for user in range(60)]
    old = [turn(user, workload=f"of {user}") for user in range(60) for _ in range(4)]
    why = tripped(new, old)
    assert why is not None
    assert why.startswith("error_rate in workloads of few users: ")


def test_a_limit_that_cuts_off_no_usual_answer_is_the_versions_to_keep() -> None:
    """Of those who ask for few tokens nothing is learned; the others' answers do run on to their limit."""
    before = turns(240, tokens=50)
    assert tripped([cut_short(user) for user in range(60)] + turns(60, tokens=50), before) is None
    ran_on = turns(60, {"finish_reason": "length", "over_long": True, "tokens": 400})
    why = tripped(ran_on, before)
    assert why is not None
    assert why.startswith("over_long_answers")


def test_a_service_of_few_users_is_guarded_too() -> None:
    """Where all of eight users fail, that is the version; where one does, it is hers."""
    old = [turn(user) for user in range(8) for _ in range(20)]
    assert tripped([turn(user, finish_reason="error") for user in range(8) for _ in range(5)], old) is not None
    one = [turn(user, **(FAULTS["error_rate"] if user == 0 else {})) for user in range(8) for _ in range(5)]
    assert tripped(one, old) is None


# ---------------------------------------------------------------------------------------------- alarms


def alarm(severity: Literal["info", "warning", "critical"], *holds: str) -> Alarm:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    return Alarm(
        alarm_id="a",
        monitor="entropy",
        severity=severity,
        window_start=at,
        window_end=at,
        figures={"entropy": 0.125},
        holds=holds,
        state="opened",
        at=at,
    )


def test_a_critical_alarm_that_holds_releases_trips_at_once() -> None:
    assert tripped([], [], [alarm("critical", "release")]) == ALARMED
    for other in (alarm("warning", "release"), alarm("critical"), alarm("critical", "training")):
        assert tripped([], [], [other]) is None


# ---------------------------------------------------------------------------------------------- how soon, how often


Draw = Callable[[np.random.Generator, int], dict[str, Any]]


def first_trip(seed: int, draw: Draw, users: Sequence[float], number: int = 1000, every: int = 50) -> int | None:
    """Return how many turns the new version had when a guard tripped, with a look after each `every` turns.

    A quarter of the users have it."""
    rng = np.random.default_rng(seed)
    fails = rng.permutation(np.array(users))
    new: list[ServedTurn] = []
    old: list[ServedTurn] = []
    for place in range(number):
        user = int(rng.integers(len(users)))
        changed = {"latency_ms": 1000 * float(np.exp(rng.normal(0, 0.5)))}
        if rng.random() < fails[user]:
            changed |= {"finish_reason": "error"}
        if user % 4 == 0:
            new.append(turn(user, **changed | draw(rng, user)))
        else:
            old.append(turn(user, **changed))
        if place % every == 0 and tripped(new, old) is not None:
            return len(new)
    return None


def as_before(_rng: np.random.Generator, _user: int) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    "fails",
    [[0.03] * 80, [0.8] * 4 + [0.0] * 76],
    ids=["all alike", "those of a few users, always"],
)
def test_an_equal_version_trips_no_more_often_than_stated(fails: list[float]) -> None:
    trials = 20
    trips = [first_trip(seed, as_before, fails) for seed in range(trials)]
    assert sum(trip is not None for trip in trips) <= ALPHA * trials


def test_a_version_that_fails_in_a_third_of_turns_goes_within_tens_of_them() -> None:
    def broken(rng: np.random.Generator, _user: int) -> dict[str, Any]:
        return {"finish_reason": "error"} if rng.random() < 1 / 3 else {}

    trips = [first_trip(seed, broken, [0.01] * 80, every=4) for seed in range(20)]
    assert all(trip is not None and trip < 100 for trip in trips)


bad_turns = st.fixed_dictionaries(
    {
        "user": st.integers(0, 5),
        "finish_reason": st.sampled_from(["stop", "length", "tool_calls", "error", "abort"]),
        "invalid_call": st.booleans(),
        "latency_ms": st.floats(0.01, 1e6) | st.just(0.0),
        "tokens": st.integers(0, 3),
        "empty": st.booleans(),
        "over_long": st.booleans(),
        "purpose": st.sampled_from(["turn", "suggestion", "summary"]),
        "workload": st.sampled_from(["write", "fix"]),
    }
)


@given(st.lists(bad_turns, max_size=60))
def test_a_version_never_trips_against_itself(made: list[dict[str, Any]]) -> None:
    same = [turn(**changed) for changed in made]
    assert tripped(same, same) is None


# ---------------------------------------------------------------------------------------- what they look back on

_MOST_KEPT = CanarySettings().guard_turns


def test_nobody_hides_a_fault_behind_turns_of_her_own() -> None:
    before, after = RecentTurns(_MOST_KEPT), RecentTurns(_MOST_KEPT)
    for each in turns(240):
        before.append(each)
    for each in turns(60, FAULTS["empty_answers"]):
        after.append(each)
    for side in (before, after):
        for _ in range(2 * _MOST_KEPT):
            side.append(turn(1000))
    why = tripped(list(after), list(before))
    assert why is not None
    assert why.startswith("empty_answers in write: ")


def test_nobody_makes_a_large_crowd_look_small() -> None:
    served = RecentTurns(2 * _MOST_KEPT)
    for number in range(1000):
        served.append(turn(number % 500))
    for _ in range(5 * _MOST_KEPT):
        served.append(turn(1000))
    seen = crowd_of(len({each.unit for each in served}), len(served), CanarySettings())
    assert seen == crowd_of(501, len(served), CanarySettings())
    assert seen.switch_s is None


def test_the_newest_are_kept_in_order_and_the_oldest_dropped() -> None:
    recent = RecentTurns(40)
    told = [turn(number % 13) for number in range(1000)]
    for each in told:
        recent.append(each)
    assert len(recent) == 40
    assert list(recent) == told[-40:]
    for each in (alone := [turn(99) for _ in range(50)]):
        recent.append(each)
    assert Counter(each.unit for each in recent)["user 99"] == 5
    assert list(recent)[-5:] == alone[-5:]
    recent.clear()
    assert (len(recent), list(recent), dict(recent._of_user)) == (0, [], {})
