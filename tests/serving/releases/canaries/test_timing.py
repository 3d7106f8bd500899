"""The time from an outcome's arrival to the first token of a version that learned from it, once per outcome."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import made_events
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_world import START

from core import telemetry
from core.events import PolicyVersion
from core.ids import base_ref
from serving.releases import LoopTimer


def policy(version: int, arrivals: Sequence[datetime], parent: int | None = None) -> PolicyVersion:
    parent_ref = base_ref(parent or version - 1)
    return made_events.policy(base_ref(version), parent=parent_ref, outcome_arrivals=tuple(arrivals))


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def timed() -> float:
    return telemetry.REGISTRY.get_sample_value("onward_feedback_to_served_seconds_count") or 0


def held() -> float:
    return telemetry.REGISTRY.get_sample_value("onward_feedback_held_total") or 0


def quantile(which: str) -> float | None:
    return telemetry.REGISTRY.get_sample_value("onward_feedback_to_served_quantile_seconds", {"quantile": which})


def test_superseded_versions_hand_their_arrivals_on() -> None:
    """The next version that serves has learned from them."""
    timer, before = LoopTimer(START), timed()
    timer.published(policy(2, [START]))
    timer.published(policy(3, [after(2)]))
    assert timed() == before, "nobody served"
    timer.first_token(base_ref(3), after(5))
    timer.first_token(base_ref(3), after(9))
    assert timed() == before + 2, "only the first token counts"
    timer.publish_quantiles()
    assert (quantile("0.5"), quantile("0.99")) == (4.0, pytest.approx(4.98))


def test_what_one_line_learned_another_did_not() -> None:
    """Versions 2 and 3 are siblings: 3 does not count for what 2 learned."""
    timer, before = LoopTimer(START), timed()
    timer.published(policy(2, [START], parent=1))
    timer.published(policy(3, [START, START], parent=1))
    timer.first_token(base_ref(3), after(1))
    assert timed() == before + 2
    timer.first_token(base_ref(2), after(1))
    assert timed() == before + 3


def test_the_engine_may_speak_before_the_log_does() -> None:
    timer, before = LoopTimer(START), timed()
    timer.first_token(base_ref(2), after(3))
    assert timed() == before
    timer.published(policy(2, [START]))
    assert timed() == before + 1
    timer.publish_quantiles()
    assert quantile("0.5") == 3.0


def test_a_policy_told_twice_counts_its_arrivals_once() -> None:
    timer, before = LoopTimer(START), timed()
    for _ in range(2):
        timer.published(policy(2, [START]))
    timer.first_token(base_ref(2), after(1))
    timer.published(policy(2, [START]))
    timer.first_token(base_ref(2), after(2))
    assert timed() == before + 1


def test_a_version_that_serves_again_times_nothing_again() -> None:
    timer, before = LoopTimer(START), timed()
    timer.published(policy(2, [START]))
    timer.published(policy(3, [START]))
    for version in (2, 3, 2):
        timer.first_token(base_ref(version), after(1))
    assert timed() == before + 2


def test_what_waited_for_held_releases_or_a_restart_is_counted_and_not_timed() -> None:
    """That time says nothing of how fast feedback is learned from. What arrives afterwards is timed again."""
    timer, before, held_before = LoopTimer(since=START), timed(), held()
    timer.published(policy(2, [after(-1), after(0)]))
    timer.first_token(base_ref(2), after(3))
    assert (timed() - before, held() - held_before) == (1, 1), "the first outcome waited for the service to start"
    timer.published(policy(3, [after(4)]))
    timer.held_until(after(60))
    timer.held_until(after(50))
    timer.published(policy(4, [after(55), after(60)]))
    timer.first_token(base_ref(4), after(62))
    assert (timed() - before, held() - held_before) == (2, 3)
    timer.publish_quantiles()
    assert quantile("0.5") == 2.5


def test_what_a_held_version_learned_is_counted_and_not_timed() -> None:
    """Version 2 was superseded and waits with 3. What version 4 learned upon them waited for nobody."""
    timer, before, held_before = LoopTimer(since=START), timed(), held()
    timer.held(base_ref(3))
    for version in (2, 3, 4):
        timer.published(policy(version, [after(version)]))
    timer.held(base_ref(3))
    timer.first_token(base_ref(4), after(60))
    timer.first_token(base_ref(3), after(70))
    assert (timed() - before, held() - held_before) == (1, 2)
    timer.publish_quantiles()
    assert quantile("0.5") == 56.0


@given(seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=50), cuts=st.lists(st.integers(0, 50), max_size=5))
def test_quantiles_are_exact(seconds: list[float], cuts: list[int]) -> None:
    """Quantiles cover all outcomes since the start, in however many versions they were learned."""
    timer = LoopTimer(since=START)
    places = sorted({0, len(seconds), *(cut % len(seconds) for cut in cuts)})
    at, taken = after(2e6), [timedelta(seconds=value) for value in seconds]
    for version, (start, end) in enumerate(pairwise(places), 2):
        timer.published(policy(version, [at - value for value in taken[start:end]]))
        timer.first_token(base_ref(version), at)
    timer.publish_quantiles()
    exact = [value.total_seconds() for value in taken]
    for which in ("0.5", "0.99"):
        assert quantile(which) == pytest.approx(float(np.quantile(exact, float(which))), rel=1e-9, abs=1e-9)
