"""Which episode comes next."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts_world import HARNESS, plan_of, task

from environments.errors import TaskError
from environments.rollouts.journal import Waiting
from environments.rollouts.plan import TaskSet, episode_of
from environments.rollouts.queue import EpisodeQueue

A = TaskSet("a", (task("one"), task("two")), share=3.0)
B = TaskSet("b", (task("one"),), share=1.0)


def taken(queue: EpisodeQueue, most: int = 1000, now: float = 0.0) -> list[Waiting]:
    found = []
    while len(found) < most and (each := queue.take(now)) is not None:
        found.append(each)
    return found


@given(st.integers(1, 200))
def test_sets_share_as_they_should_at_every_moment(count: int) -> None:
    served = Counter(
        each.episode.environment for each in taken(EpisodeQueue(plan_of(A, B, tries=None), "j", Counter(), ()), count)
    )
    assert abs(served["a"] - 3 * served["b"]) <= 3


@given(st.integers(0, 20), st.integers(1, 7))
def test_it_goes_on_after_what_was_begun_and_takes_each_once(before: int, tries: int) -> None:
    plan = plan_of(A, B, tries=tries)
    every = {each.episode.episode_id for each in taken(EpisodeQueue(plan, "j", Counter(), ()))}
    assert len(every) == plan.episodes == 3 * tries
    first = taken(EpisodeQueue(plan, "j", Counter(), ()), before)
    begun = Counter((e.episode.environment, e.episode.task, e.episode.task_digest) for e in first)
    rest = taken(EpisodeQueue(plan, "j", begun, ()))
    ids = [each.episode.episode_id for each in [*first, *rest]]
    assert sorted(ids) == sorted(every)


def test_no_task_is_ahead_of_another_by_more_than_one() -> None:
    for count in range(1, 9):
        each = Counter(e.episode.task for e in taken(EpisodeQueue(plan_of(A, tries=None), "j", Counter(), ()), count))
        assert max(each.values()) - min(each["one"], each["two"]) <= 1


@given(st.integers(0, 8), st.one_of(st.none(), st.integers(1, 3)), st.floats(0, 10))
def test_what_is_coming_is_what_is_taken_next(before: int, tries: int | None, now: float) -> None:
    queue = EpisodeQueue(plan_of(A, B, tries=tries), "j", Counter(), ())
    for number, each in enumerate(taken(queue, before)):
        if number % 2:
            queue.put_back(each, 5.0)
    coming, found = queue.coming(now), queue.take(now)
    assert coming == (None if found is None else queue.task_of(found.episode))


def test_a_failed_one_waits_for_its_time_and_then_goes_first() -> None:
    queue = EpisodeQueue(plan_of(B, tries=None), "j", Counter(), ())
    first = queue.take(0.0)
    assert first is not None
    queue.put_back(first, 5.0)
    assert queue.next_due_at == 5.0
    between = queue.take(4.9)
    assert between is not None
    assert between.episode.episode_id != first.episode.episode_id
    assert queue.take(5.0) == first
    assert queue.next_due_at is None


def test_what_the_plan_lost_is_not_tried_again() -> None:
    gone = Waiting(episode_of("j", "h", "b", task("gone"), 0), 0)
    changed = Waiting(episode_of("j", "h", "b", task("one", digest="other"), 0), 0)
    queue = EpisodeQueue(plan_of(B, tries=1), "j", Counter(), (gone, changed))
    assert [each.episode.task_digest for each in taken(queue)] == ["d"]


def test_what_is_tried_again_says_the_harness_that_now_works_on_it() -> None:
    before = Waiting(episode_of("j", "scripted@0", "b", task("one"), 0), 1)
    queue = EpisodeQueue(plan_of(B, tries=1), "j", Counter({("b", "one", "d"): 1}), (before,))
    (again,) = taken(queue)
    assert (again.episode.episode_id, again.episode.harness) == (before.episode.episode_id, HARNESS)


def test_tasks_and_sets_of_one_name_are_refused() -> None:
    with pytest.raises(TaskError, match="one: more than one task"):
        TaskSet("a", (task("one"), task("one")))
    with pytest.raises(TaskError, match="same name"):
        plan_of(A, A)
