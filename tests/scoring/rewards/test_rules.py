"""The values of outcomes."""

import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.events import Reward
from core.reward_spec import RewardSpec, load_reward_spec
from onward.directory.layout import SHIPPED_REWARDS


def spec_of(outcomes: dict[str, dict[str, Any]], **parts: object) -> RewardSpec:
    return RewardSpec.model_validate({"outcomes": outcomes, **parts})


ACCEPTED = {"type": "boolean", "weight": 1.0, "decides": True, "wait_s": 60}
TESTS = {"type": "boolean", "weight": 0.25, "false_weight": -0.25}


def one(rewards: Sequence[Reward]) -> Reward:
    assert len(rewards) == 1
    return rewards[0]


# --------------------------------------------------------------------------------------------- waiting and deciding


def test_a_deciding_outcome_decides_at_its_arrival(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    said = events.outcome(turn, "accepted", True, 2)
    reward = one(lab.score(spec_of({"accepted": ACCEPTED}), [turn, said]))
    assert (reward.value, reward.components, reward.revision, reward.final) == (1.0, {"accepted": 1.0}, 0, True)
    assert reward.outcome_ids == (said.outcome_id,)
    assert reward.decided_at == reward.first_outcome_at == reward.last_outcome_at == lab.at(2)
    assert reward.spec == spec_of({"accepted": ACCEPTED}).digest
    assert "accepted +1.00" in reward.why


def test_other_outcomes_wait_for_the_longest_wait(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, events.outcome(turn, "tests_passed", True, 2)]
    spec = spec_of({"accepted": ACCEPTED, "tests_passed": TESTS})
    assert lab.score(spec, log, until=lab.at(59.9)) == []
    reward = one(lab.score(spec, log, until=lab.at(60)))
    assert (reward.value, reward.decided_at, reward.first_outcome_at) == (0.25, lab.at(60), lab.at(2))


def test_a_default_stands_in_for_silence(lab: ModuleType) -> None:
    spec = spec_of({"accepted": ACCEPTED | {"default": False, "false_weight": -0.3}, "tests_passed": TESTS})
    reward = one(lab.score(spec, [lab.Events().turn("s", 0)], until=lab.at(100)))
    assert (reward.value, reward.outcome_ids, reward.first_outcome_at) == (-0.3, (), None)
    assert "by default" in reward.why


def test_a_decision_leaves_other_defaults_out(lab: ModuleType) -> None:
    spec = spec_of({"accepted": ACCEPTED | {"default": False, "false_weight": -0.3}, "rejected": ACCEPTED})
    events = lab.Events()
    turn = events.turn("s", 0)
    reward = one(lab.score(spec, [turn, events.outcome(turn, "rejected", True, 1)], until=lab.at(100)))
    assert reward.components == {"rejected": 1.0}


def test_nothing_known_is_no_reward_rather_than_zero(lab: ModuleType) -> None:
    assert lab.score(spec_of({"accepted": ACCEPTED}), [lab.Events().turn("s", 0)], until=lab.at(1000)) == []


def test_a_late_outcome_after_silence_is_the_first_reward(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, events.turn("s", 500), events.outcome(turn, "tests_passed", False, 501)]
    reward = one(lab.score(spec_of({"accepted": ACCEPTED, "tests_passed": TESTS}), log))
    assert (reward.revision, reward.value, reward.decided_at) == (0, -0.25, lab.at(501))


def test_late_outcomes_correct(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, events.outcome(turn, "accepted", True, 2), events.outcome(turn, "tests_passed", False, 900)]
    first, second = lab.score(spec_of({"accepted": ACCEPTED, "tests_passed": TESTS}), log)
    assert (first.revision, first.value, second.revision, second.value) == (0, 1.0, 1, 0.75)
    assert (second.first_outcome_at, second.last_outcome_at) == (lab.at(900), lab.at(900))
    assert "corrects +1.00" in second.why


def test_an_outcome_that_changes_nothing_makes_no_revision(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, events.outcome(turn, "accepted", True, 2), events.outcome(turn, "accepted", True, 3)]
    one(lab.score(spec_of({"accepted": ACCEPTED}), log, until=lab.at(1000)))


def test_amendments_and_withdrawals_correct(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    said = events.outcome(turn, "accepted", True, 2)
    amended = events.amendment(said, False, 4)
    log = [turn, said, amended, events.withdrawal(amended, 6)]
    spec = spec_of({"accepted": ACCEPTED | {"false_weight": -1.0, "default": False}})
    rewards = lab.score(spec, log)
    assert [reward.value for reward in rewards] == [1.0, -1.0, 0.0]
    assert [reward.final for reward in rewards] == [True, True, False]
    assert rewards[2].first_outcome_at == lab.at(6)
    assert "nothing stands" in rewards[2].why
    assert [reward.value for reward in lab.score(spec, log, until=lab.at(60))] == [1.0, -1.0, 0.0, -1.0]


def test_a_revision_is_never_dated_before_the_one_it_corrects(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, events.outcome(turn, "accepted", True, 2), events.outcome(turn, "tests_passed", True, 1.5)]
    spec = spec_of({"accepted": ACCEPTED | {"weight": 0.5}, "tests_passed": TESTS})
    assert [(r.value, r.decided_at) for r in lab.score(spec, log)] == [(0.5, lab.at(2)), (0.75, lab.at(2))]


def test_values_are_clipped_and_say_so(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, events.outcome(turn, "accepted", True, 2)]
    reward = one(lab.score(spec_of({"accepted": ACCEPTED | {"weight": 3.0}}, clip=(-1, 2)), log))
    assert (reward.value, reward.components) == (2.0, {"accepted": 3.0})
    assert "clipped to +2.00" in reward.why


@pytest.mark.parametrize(
    ("aggregation", "of_numbers", "of_booleans"),
    [
        ("earliest", 0.25, -0.5),
        ("last", 0.75, -0.5),
        ("mean", 0.25, 0.0),
        ("sum", 0.75, 0.0),
        ("min", -0.25, -0.5),
        ("max", 0.75, 1.0),
    ],
)
def test_aggregations(lab: ModuleType, aggregation: str, of_numbers: float, of_booleans: float) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    for values, type_, expected in (
        ([0.25, -0.25, 0.75], "number", of_numbers),
        ([False, True, False], "boolean", of_booleans),
    ):
        log = [turn, *(events.outcome(turn, "said", value, 1 + i) for i, value in enumerate(values))]
        false_weight = {"false_weight": -0.5} if type_ == "boolean" else {}
        spec = spec_of({"said": {"type": type_, "weight": 1.0, "aggregation": aggregation, **false_weight}})
        assert lab.score(spec, log)[-1].value == expected


@pytest.mark.parametrize(("aggregation", "value"), [("last", -0.5), ("earliest", 1.0)])
def test_of_two_results_of_one_check_the_order_in_which_they_came_about_decides(
    lab: ModuleType, aggregation: str, value: float
) -> None:
    """The slow run began first, and is reported last; where both were seen at once, the order of the log decides."""
    spec = spec_of({"tests": {"type": "boolean", "weight": 1.0, "false_weight": -0.5, "aggregation": aggregation}})
    for slow_s, fast_s in ((5, 8), (6, 6)):
        events = lab.Events()
        turn = events.turn("s", 0)
        fast = events.outcome(turn, "tests", slow_s == fast_s, 10, observed_at=lab.at(fast_s))
        slow = events.outcome(turn, "tests", slow_s != fast_s, 20, observed_at=lab.at(slow_s))
        assert lab.score(spec, [turn, fast, slow])[-1].value == value


def test_an_amendment_takes_the_place_of_what_it_corrects(lab: ModuleType) -> None:
    events = lab.Events()
    spec = spec_of({"tests": {"type": "boolean", "weight": 1.0, "false_weight": -0.5, "aggregation": "last"}})
    turn = events.turn("s", 0)
    first, second = events.outcome(turn, "tests", False, 1), events.outcome(turn, "tests", False, 2)
    amended = events.outcome(turn, "tests", True, 3, supersedes=first.outcome_id)
    assert lab.score(spec, [turn, first, second, amended])[-1].value == -0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rating", 2.0),
        ("rating", float("nan")),
        ("rating", True),
        ("rating", "good"),
        ("tests_passed", 1.0),
        ("new", 1.0),
    ],
)
def test_values_that_the_spec_does_not_know_count_for_nothing(lab: ModuleType, name: str, value: object) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    spec = spec_of({"rating": {"type": "number", "weight": 1.0, "maximum": 1}, "tests_passed": TESTS})
    assert lab.score(spec, [turn, events.outcome(turn, name, value, 1)], until=lab.at(100)) == []


# --------------------------------------------------------------------------------------------- suggestions


def test_a_silent_suggestion_is_decided_at_once(lab: ModuleType) -> None:
    turn = lab.Events().turn("s", 3, purpose="suggestion", text="")
    reward = one(lab.score(spec_of({"accepted": ACCEPTED}), [turn]))
    assert (reward.value, reward.decided_at, reward.final, reward.components) == (0.0, lab.at(3), True, {"silent": 0.0})


def test_an_ignored_suggestion_has_its_own_wait_and_default(lab: ModuleType) -> None:
    turn = lab.Events().turn("s", 0, purpose="suggestion")
    spec = spec_of({"accepted": ACCEPTED}, suggestion={"ignored_reward": -0.2, "wait_s": 7})
    assert lab.score(spec, [turn], until=lab.at(6.9)) == []
    reward = one(lab.score(spec, [turn], until=lab.at(7)))
    assert (reward.value, reward.decided_at, reward.components) == (-0.2, lab.at(7), {"ignored": -0.2})


def test_an_accepted_suggestion_is_not_ignored(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0, purpose="suggestion")
    log = [turn, events.outcome(turn, "accepted", True, 2)]
    reward = one(lab.score(spec_of({"accepted": ACCEPTED}), log, until=lab.at(100)))
    assert reward.components == {"accepted": 1.0}


def test_a_suggestion_accepted_late_is_corrected(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0, purpose="suggestion")
    log = [turn, events.outcome(turn, "accepted", True, 90)]
    assert [r.value for r in lab.score(spec_of({"accepted": ACCEPTED}), log)] == [-0.05, 1.0]


# --------------------------------------------------------------------------------------------- sessions


def test_a_sessions_outcome_counts_for_each_of_its_turns(lab: ModuleType) -> None:
    events = lab.Events()
    turns = [events.turn("s", second) for second in range(3)]
    rewards = lab.score(spec_of({"accepted": ACCEPTED}), [*turns, events.outcome("s", "accepted", True, 9)])
    assert [(r.inference_id, r.value) for r in rewards] == [(turn.inference_id, 1.0) for turn in turns]


def test_or_for_the_last_one_alone(lab: ModuleType) -> None:
    events = lab.Events()
    turns = [events.turn("s", second) for second in range(3)]
    log = [*turns, events.outcome("s", "accepted", True, 9), events.turn("s", 10)]
    reward = one(lab.score(spec_of({"accepted": ACCEPTED}, session={"credit": "last"}), log, until=lab.at(500)))
    assert reward.inference_id == turns[2].inference_id


def test_or_for_each_the_less_the_more_came_after_it(lab: ModuleType) -> None:
    """The discount applies to false_weight as to weight; side turns do not count."""
    events = lab.Events()
    turns = [events.turn("s", 0), events.turn("s", 1), events.turn("s", 1.5, purpose="side"), events.turn("s", 2)]
    spec = spec_of({"accepted": ACCEPTED | {"false_weight": -1.0}}, session={"credit": "discounted", "discount": 0.5})
    for value, sign in ((True, 1), (False, -1)):
        log = [*turns, events.outcome("s", "accepted", value, 9), events.turn("s", 10)]
        credited = {reward.inference_id: reward.value for reward in lab.score(spec, log)}
        assert [credited.get(turn.inference_id) for turn in turns] == [sign * 0.25, sign * 0.5, None, sign * 1.0]


def test_a_sessions_outcome_does_not_speak_of_turns_that_came_after_it(lab: ModuleType) -> None:
    events = lab.Events()
    turn = events.turn("s", 0)
    log = [turn, events.outcome("s", "accepted", True, 5), events.turn("s", 6)]
    reward = one(lab.score(spec_of({"accepted": ACCEPTED}), log, until=lab.at(500)))
    assert reward.inference_id == turn.inference_id


@pytest.mark.parametrize("fields", [{"purpose": "side"}, {"purpose": "judge"}, {"purpose": "summary"}])
def test_turns_beside_the_session_get_none_of_its_credit(lab: ModuleType, fields: dict[str, str]) -> None:
    events = lab.Events()
    beside, turn = events.turn("s", 0, **fields), events.turn("s", 1)
    log = [beside, turn, events.outcome("s", "accepted", True, 5)]
    reward = one(lab.score(spec_of({"accepted": ACCEPTED}), log, until=lab.at(500)))
    assert reward.inference_id == turn.inference_id
    own = events.outcome(beside, "accepted", True, 6)
    assert len(lab.score(spec_of({"accepted": ACCEPTED}), [*log, own])) == 2


def test_a_summary_shares_in_what_became_of_its_session_where_the_spec_says_so(lab: ModuleType) -> None:
    events = lab.Events()
    turns = [events.turn("s", 0), events.turn("s", 1, purpose="summary"), events.turn("s", 2)]
    spec = spec_of({"accepted": ACCEPTED}, session={"purposes": load_reward_spec(SHIPPED_REWARDS).session.purposes})
    rewards = lab.score(spec, [*turns, events.outcome("s", "accepted", True, 5)], until=lab.at(500))
    assert {reward.inference_id for reward in rewards} == {turn.inference_id for turn in turns}


@pytest.mark.parametrize("how", ["session_done", "ended", "idle"])
def test_a_sessions_end_brings_the_defaults(lab: ModuleType, how: str) -> None:
    events = lab.Events()
    spec = spec_of(
        {"accepted": ACCEPTED | {"default": True, "wait_s": 1000}}, session={"idle_timeout_s": 200, "end_wait_s": 10}
    )
    log = [events.turn("s", 0), events.turn("s", 5, session_done=how == "session_done")]
    if how == "ended":
        log.append(events.ended("s", 5))
    due = 205 if how == "idle" else 15
    assert lab.score(spec, log, until=lab.at(due - 0.1)) == []
    assert [r.decided_at for r in lab.score(spec, log, until=lab.at(due))] == [lab.at(due)] * 2


def test_another_turn_keeps_the_session_going(lab: ModuleType) -> None:
    events = lab.Events()
    spec = spec_of({"accepted": ACCEPTED | {"default": True, "wait_s": 1000}}, session={"idle_timeout_s": 200})
    log = [events.turn("s", 0), events.ended("s", 5), events.turn("s", 6)]
    assert lab.score(spec, log, until=lab.at(200)) == []
    assert len(lab.score(spec, log, until=lab.at(206))) == 2


def test_what_is_said_while_an_answer_streams_counts_though_it_is_logged_before_it(lab: ModuleType) -> None:
    events = lab.Events()
    outcomes = {"accepted": ACCEPTED | {"default": True, "wait_s": 1000}}
    spec = spec_of(outcomes, session={"idle_timeout_s": 200, "end_wait_s": 10})
    turn, ended = events.turn("s", 0), events.ended("s", 5)
    assert [reward.decided_at for reward in lab.score(spec, [ended, turn], until=lab.at(15))] == [lab.at(15)]
    said = events.outcome(turn, "accepted", False, 5)
    reward = one(lab.score(spec, [said, turn, said, ended], until=lab.at(500)))
    assert (reward.value, reward.outcome_ids) == (0.0, (said.outcome_id,))


def test_what_ended_by_idleness_stays_decided_when_the_session_goes_on(lab: ModuleType) -> None:
    events = lab.Events()
    spec = spec_of({"accepted": ACCEPTED | {"default": True, "wait_s": 1000}}, session={"idle_timeout_s": 200})
    first, again = events.turn("s", 0), events.turn("s", 201)
    reward = one(lab.score(spec, [first, again, events.outcome(first, "unheard_of", True, 202)]))
    assert (reward.inference_id, reward.decided_at) == (first.inference_id, lab.at(200))
    spec = spec_of(spec.model_dump()["outcomes"] | {"tests_passed": TESTS}, session={"idle_timeout_s": 200})
    rewards = lab.score(spec, [first, again, events.outcome(first, "tests_passed", False, 202)])
    assert [(r.value, r.components) for r in rewards] == [
        (1.0, {"accepted": 1.0}),
        (0.75, {"accepted": 1.0, "tests_passed": -0.25}),
    ]


# --------------------------------------------------------------------------------------------- properties


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), rng=st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_change_the_last_value(lab: ModuleType, seed: int, rng: random.Random) -> None:
    events = lab.random_events(seed, 40)
    turns = [event for event in events if isinstance(event, lab.Completion)]
    rest = [event for event in events if isinstance(event, lab.Outcome)]
    shuffled = [*turns, *rng.sample(rest, len(rest))]
    expected = lab.last_values(lab.score(lab.SPEC, [*turns, *rest], until=lab.at(10_000)))
    found = lab.last_values(lab.score(lab.SPEC, shuffled, until=lab.at(10_000)))
    assert {key: value for key, value in found.items() if value} == {
        key: value for key, value in expected.items() if value
    }


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_an_outcome_and_its_withdrawal_are_none(lab: ModuleType, seed: int) -> None:
    events = lab.random_events(seed, 30)
    make = lab.Events(lab.itertools.count(1_000_000))
    turns = [event for event in events if isinstance(event, lab.Completion)] or [make.turn("s", 0)]
    said = make.outcome(turns[0], "accepted", True, 100)
    expected = lab.last_values(lab.score(lab.SPEC, [*turns, *events], until=lab.at(10_000)))
    found = lab.score(lab.SPEC, [*turns, *events, said, make.withdrawal(said, 101)], until=lab.at(10_000))
    assert (
        lab.last_values(found) == expected | {turns[0].inference_id: expected.get(turns[0].inference_id, 0.0)}
        or lab.last_values(found) == expected
    )
