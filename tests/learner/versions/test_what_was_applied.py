"""A lineage's memory of its turns: which trained, by how much, and nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest
import torch
from changed_settings import changed
from logged_world import (
    MODEL,
    World,
    lineage_of_newest,
    logged_past,
    make_reward,
    make_turn,
    manifests,
    open_world,
    settle,
)

from core.events import Completion, Reward
from core.ids import UserHash, base_ref
from core.settings import LearnerSettings
from learner.sequences.scored import ScoredTurn
from learner.updates.state import make_state
from learner.updates.update import update
from learner.versions.checkpoint import Checkpoints
from learner.versions.manifest import prove_exactly_once
from learner.versions.provenance import applied_on

MakeWorld = Callable[[str], World]


def learn(world: World, *pasts: list[tuple[Completion, Reward]]) -> None:
    """Learn a version from each past."""
    learner = world.learner()
    for past in pasts:
        world.tell(*past)
        settle(learner)
    learner.close()


def corrected(past: list[tuple[Completion, Reward]], value: float) -> list[tuple[Completion, Reward]]:
    return [(turn, make_reward(turn, value + 0.1 * n, revision=1, after_s=30)) for n, (turn, _) in enumerate(past)]


def test_what_only_an_abandoned_branch_learned_is_new_to_the_lineage(make_world: MakeWorld) -> None:
    world = make_world("a")
    kept, abandoned = logged_past(8), logged_past(8, seed=1)
    learn(world, kept, abandoned)
    world.release(2)
    world.release(3)
    world.release(3, "rolled_back")
    world.release(2)
    learn(world, corrected(kept[:4], 0.1) + corrected(abandoned[:4], -0.1))
    newest = manifests(world)[-1]
    assert (newest.version, newest.parent) == (base_ref(4), base_ref(2))
    before = {record.inference_id: record.applied_revision for record in newest.turns}
    assert [before[turn.inference_id] for turn, _ in kept[:4]] == [0] * 4
    assert [before[turn.inference_id] for turn, _ in abandoned[:4]] == [None] * 4
    assert prove_exactly_once(lineage_of_newest(world)) == 16


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yield a world with two versions, which tests only read."""
    world = open_world(tmp_path_factory.mktemp("learned"))
    learn(world, logged_past(8), logged_past(8, seed=1))
    yield world
    world.close()


def test_manifests_say_what_the_checkpoint_does(learned: World) -> None:
    """Manifests include the scale, which corrections divide by, and the turn's time, at which the memory ends."""
    kept = Checkpoints(learned.directory / "learner").of(base_ref(3))
    assert kept is not None
    found = applied_on([base_ref(1), base_ref(2), base_ref(3)], learned.blobs)
    assert len({applied.scale for applied in found.values()} | {1.0}) > 2
    assert found == kept.meta.applied


def test_the_proof_knows_a_revision_that_trained_twice(learned: World) -> None:
    """The revision is a correction of itself."""
    first, second = manifests(learned)
    again = msgspec.structs.replace(first.turns[0], applied_revision=first.turns[0].revision)
    twice = msgspec.structs.replace(second, turns=(again, *second.turns))
    assert prove_exactly_once([first, second]) == 16
    with pytest.raises(AssertionError, match=f"{again.inference_id} revision 0 trained again in version 3"):
        prove_exactly_once([first, twice])


def test_a_turn_that_was_dropped_was_not_applied(make_world: MakeWorld) -> None:
    """A later outcome of it is the first that trains."""
    world = make_world("a")
    learner = world.learner(settings={"admission.max_outcome_age_s": {"accepted": 10.0}, "admission.min_ess": 0.0})
    late = make_turn(50)
    world.tell(*logged_past(7), (late, make_reward(late, 1.0, after_s=11)))
    settle(learner)
    assert late.inference_id not in learner._backlog.applied
    assert applied_on([base_ref(1), base_ref(2)], world.blobs) == learner._backlog.applied
    world.tell(*logged_past(7, seed=1), (late, make_reward(late, -1.0, revision=1, after_s=9)))
    settle(learner)
    learner.close()
    records = [record for made in manifests(world) for record in made.turns if record.inference_id == late.inference_id]
    assert [(record.dropped, record.applied_revision) for record in records] == [("too_old", None), (None, None)]
    assert prove_exactly_once(manifests(world)) == 15


def test_who_said_how_much_is_known_after_a_restart(make_world: MakeWorld) -> None:
    world = make_world("a")
    settings = {"users.max_share": 0.25, "users.distrust": True}
    learner = world.learner(settings=settings)
    world.tell(*[(msgspec.structs.replace(turn, user_id=UserHash("loud")), reward) for turn, reward in logged_past(8)])
    settle(learner)
    remembered = learner._rank_group._state.influence.state_dict()
    learner.close()
    assert remembered["turns"] == 8
    learner = world.learner(settings=settings)
    assert learner._rank_group._state.influence.state_dict() == remembered
    learner.close()


def test_a_batch_of_which_everything_was_dropped_moves_no_weights() -> None:
    """The optimizer's momentum moves none either."""
    settings = changed(LearnerSettings(), {"advantage.baseline": "batch"})
    state = make_state(MODEL, settings)
    batch = [ScoredTurn(turn, reward) for turn, reward in logged_past(8)]
    update(state, batch, settings)
    before = [weight.detach().clone() for weight in state.policy.parameters()]
    moments = [value["exp_avg"].abs().max() for value in state.optimizer.state.values()]
    assert max(moments) > 0
    alike = [replace(scored, reward=msgspec.structs.replace(scored.reward, value=1.0)) for scored in batch]
    result = update(state, alike, settings)
    assert {record.dropped for record in result.records} == {"all_alike"}
    assert all(map(torch.equal, before, state.policy.parameters()))
