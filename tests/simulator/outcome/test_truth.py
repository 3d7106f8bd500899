"""The arithmetic of quality: which sessions a figure covers, and when there is no figure."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.outcome.truth import MIN_SESSIONS, WINDOW_S, Lived, Truth, difference_of_shares, rates, window_s
from simulator.report import after_shift
from simulator.tasks.sampling import Kind, sample_task
from simulator.tasks.taste import SessionQuality
from simulator.users.ide import EditorSession, Ending

TASKS = {kind: sample_task(random.Random(1), kind) for kind in ("write", "fix")}


def lived(
    at_s: float,
    good: bool,
    *,
    ending: Ending = "written",
    versions: tuple[int, ...] = (1,),
    reported: str | None = "accepted",
    kind: Kind = "write",
) -> Lived:
    judged = SessionQuality(syntax_ok=True, tests_pass=good, mismatches=0)
    quality = None if ending in ("hung_up", "failed") else judged
    session = EditorSession(TASKS[kind], session_id=f"s{at_s}", ending=ending, quality=quality, versions=list(versions))
    return Lived(at_s, session, reported)


def truth_of(*sessions: Lived) -> Truth:
    return Truth(lived=list(sessions))


def crowd(count: int, good: int, at_s: float = 10.0) -> list[Lived]:
    return [lived(at_s, number < good) for number in range(count)]


def test_quality_is_the_share_of_good_sessions() -> None:
    assert truth_of(*crowd(400, 100)).quality_at(20) == 0.25


def test_a_window_of_too_few_sessions_has_no_quality() -> None:
    assert truth_of(*crowd(MIN_SESSIONS - 1, 0)).quality_at(20) is None
    assert truth_of(*crowd(MIN_SESSIONS, 0)).quality_at(20) == 0.0


def test_a_window_holds_its_start_and_not_its_end() -> None:
    before, after = crowd(MIN_SESSIONS, 0, at_s=0.0), crowd(MIN_SESSIONS, MIN_SESSIONS, at_s=WINDOW_S)
    truth = truth_of(*before, *after)
    assert truth.quality_at(WINDOW_S) == 0.0
    assert truth.quality_at(WINDOW_S + 0.001) == 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 1 << 32),
    st.integers(MIN_SESSIONS, 3 * MIN_SESSIONS),
    st.sampled_from([2, 10, 60]),
    st.integers(0, 30) | st.floats(0, 80),
)
def test_quality_counts_every_session_of_the_window_once(seed: int, count: int, last_s: int, moment_s: float) -> None:
    """Many sessions begin at whole seconds, as windows begin and end."""
    rng = random.Random(seed)
    sessions = [
        (rng.choice((rng.randint(0, last_s), rng.uniform(0, last_s))), rng.random() < 0.5) for _ in range(count)
    ]
    inside = [good for at_s, good in sessions if at_s >= moment_s - WINDOW_S and at_s < moment_s]
    expected = sum(inside) / len(inside) if len(inside) >= MIN_SESSIONS else None
    assert truth_of(*(lived(at_s, good) for at_s, good in sessions)).quality_at(moment_s, longest=1.0) == expected


def test_where_a_loaded_machine_let_few_in_the_last_sessions_of_three_windows_are_told() -> None:
    few = [*crowd(150, 0, at_s=15.0), *crowd(100, 100, at_s=50.0)]
    assert truth_of(*few).quality_at(60) == 0.5, "all of the window, and the newest hundred before it"
    assert truth_of(*few).quality_at(60, longest=1.0) is None
    assert truth_of(*few).quality_at(79) is None, "the older ones are too old"


def test_who_hung_up_is_not_judged_and_a_failure_is_bad() -> None:
    left = [lived(10, False, ending="hung_up", reported=None)] * 50
    failed = [lived(10, False, ending="failed", reported=None)] * 100
    assert truth_of(*crowd(300, 300), *left).quality_at(20) == 1.0
    assert truth_of(*crowd(300, 300), *failed).quality_at(20) == 0.75


def test_the_start_is_the_first_sessions_that_the_first_version_answered_alone() -> None:
    untaught = [lived(at_s, False) for at_s in range(MIN_SESSIONS)]
    late = [lived(1000 + at_s, True) for at_s in range(50)]
    straddling = [lived(0.5, True, versions=(1, 2))] * 50
    taught = [lived(0.5, True, versions=(2,))] * 50
    assert truth_of(*late, *taught, *straddling, *untaught).quality_start() == 0.0
    assert truth_of(*untaught[:30], *late).quality_start() == 50 / 80
    assert truth_of().quality_start() is None


def test_accepted_counts_those_who_said_something() -> None:
    reported = ["accepted"] * 3 + ["rejected", "edited", None, None]
    truth = truth_of(*(lived(5, True, reported=name) for name in reported))
    assert truth.accepted_share(20) == 0.6
    assert truth.accepted_share(60) is None


def test_rates_are_by_kind() -> None:
    fixes = [lived(1, False, kind="fix", ending="done"), lived(1, True, kind="fix", ending="done")]
    figures = rates([lived(1, True), *fixes, lived(1, False, ending="failed")])
    assert figures["write"] == {"syntax_ok": 1.0, "tests_pass": 1.0, "in_taste": 1.0, "good": 1.0}
    assert figures["fix"] == {"syntax_ok": 1.0, "tests_pass": 0.5, "in_taste": 1.0, "good": 0.5}


def steps(*levels: tuple[int, float]) -> Truth:
    """Return ten sessions a second, of which the share given for the latest second so far is good."""
    sessions, share = [], 0.0
    for second in range(200):
        share = dict(levels).get(second, share)
        sessions += [lived(second + tenth / 10, tenth < round(share * 10)) for tenth in range(10)]
    return truth_of(*sessions)


def test_recovery_is_a_whole_window_at_nine_tenths_of_before() -> None:
    figures = after_shift(steps((0, 0.8), (100, 0.2), (140, 0.8)), 100.0, 200.0)
    assert figures["quality_before_shift"] == pytest.approx(0.8)
    assert figures["quality_after_shift"] == pytest.approx(0.2)
    assert figures["recovered_after_s"] == 58  # 2 s at 0.2 and 18 s at 0.8 are 0.74; a second earlier 0.71 < 0.72
    assert figures["recovered_share"] == pytest.approx(1.0)


def test_no_recovery_says_so() -> None:
    figures = after_shift(steps((0, 0.8), (100, 0.4)), 100.0, 200.0)
    assert figures["recovered_after_s"] is None
    assert figures["recovered_share"] == pytest.approx(0.5)


def test_the_interval_of_a_rise_is_newcombes() -> None:
    """Example (a) of his paper: 56 of 70 against 48 of 80, by method 10."""
    low, high = difference_of_shares(56, 70, 48, 80)
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


def test_a_rise_needs_both_ends() -> None:
    assert truth_of(*crowd(MIN_SESSIONS - 1, 0)).rise(20) is None
    rise = truth_of(*crowd(MIN_SESSIONS, 0)).rise(20)
    assert rise is not None
    assert rise[0] < 0 < rise[1]


def test_slow_traffic_is_looked_at_for_longer() -> None:
    assert window_s(20.0) == WINDOW_S
    assert window_s(5.0) == 60.0
