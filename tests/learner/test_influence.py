"""No user is more than a share of an update."""

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logged_world import World, logged_past, make_reward, make_turn, manifests, settle

from core.ids import UserHash
from core.settings import LearnerSettings
from learner.influence import influences
from learner.scored import ScoredTurn

MakeWorld = Callable[[str], World]


def batch_of(users: list[int | None]) -> list[ScoredTurn]:
    turns = [make_turn(n % 3, user_id=None if u is None else UserHash(f"u{u}")) for n, u in enumerate(users)]
    return [ScoredTurn(turn, make_reward(turn, 1.0)) for turn in turns]


USERS = st.lists(st.none() | st.integers(0, 4), min_size=2, max_size=24)


@given(users=USERS, share=st.floats(0.05, 1), repeats=st.booleans())
def test_no_user_has_more_than_its_share(users: list[int | None], share: float, repeats: bool) -> None:
    batch = batch_of(users)
    before = sum(influences(batch, LearnerSettings(share_repeats=repeats)))
    found = influences(batch, LearnerSettings(max_user_share=share, share_repeats=repeats))
    assert all(0 < influence <= 1 for influence in found)
    mass: Counter[object] = Counter()
    for scored, influence in zip(batch, found, strict=True):
        mass[scored.turn.user_id or scored.turn.session_id] += influence  # type: ignore[assignment]
    assert all(part <= share * before + 1e-9 for part in mass.values())


@given(users=USERS)
def test_without_a_bound_all_count_in_full(users: list[int | None]) -> None:
    assert influences(batch_of(users), LearnerSettings()) == [1.0] * len(users)


def test_the_same_answer_again_counts_once() -> None:
    found = influences(batch_of([0, 0, 0, 0, 1]), LearnerSettings(share_repeats=True))
    assert found == [0.5, 1.0, 1.0, 0.5, 1.0]


def test_a_correction_takes_back_what_was_applied(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(max_user_share=0.25)
    past = logged_past(8)
    loud = {turn.inference_id for turn, _ in past[:6]}
    past = [
        (msgspec.structs.replace(turn, user_id=UserHash("loud") if turn.inference_id in loud else None), reward)
        for turn, reward in past
    ]
    world.tell(*past)
    settle(learner)
    world.tell(*[(turn, make_reward(turn, 0.5, revision=1, after_s=30)) for turn, _ in past])
    settle(learner)
    first, second = manifests(world)
    quiet = next(record.scale for record in first.turns if record.inference_id not in loud)
    before = {record.inference_id: record for record in first.turns}
    for record in first.turns:
        assert record.scale == pytest.approx(quiet * (3 if record.inference_id in loud else 1))
    for record in second.turns:
        original = before[record.inference_id]
        assert record.scale == original.scale
        assert original.credit + record.credit == pytest.approx(
            (record.reward - original.baseline) / original.scale, abs=1e-5
        )
    metrics = learner._checkpoints.of(first.version).meta.policy.metrics
    assert metrics["limited_turns"] == 6
    learner.close()
