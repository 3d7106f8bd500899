"""What operators exclude trains no more, and a lineage that goes back to before it is as if it had never been."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import pytest
from logged_world import START, World, logged_past, make_reward, manifests, settle

from core.events import Completion, Reward
from core.ids import Namespace, PolicyRef, UserHash, base_ref
from core.operations.exclusions import Exclusion
from learner.stage import Learner
from learner.versions.manifest import prove_exactly_once
from learner.versions.relearning import Relearning

MakeWorld = Callable[[str], World]
Said = list[tuple[Completion, Reward]]
POISONER = UserHash("mallory")
PATIENT = {"batch.max_wait_s": 3600.0}  # so that all updates are of eight turns


def digest(world: World, version: PolicyRef) -> str:
    with world.store.look() as view:
        policy = view.policies.get(version)
    assert policy is not None
    return policy.digest


def said_by(past: Said, *poisoned: int) -> Said:
    return [
        (msgspec.structs.replace(turn, user_id=POISONER) if number in poisoned else turn, reward)
        for number, (turn, reward) in enumerate(past)
    ]


def hear(world: World, learner: Learner, past: Said) -> None:
    """Let a learner hear of one turn after the other, in whichever partitions they are."""
    for pair in past:
        world.tell(pair)
        settle(learner)


def exclude(world: World, what: Exclusion) -> None:
    with world.store.work() as work:
        work.exclusions.add(what, "they lie", "shell:ada", world.clock.now())


def test_an_exclusion_covers_what_meets_all_of_it() -> None:
    (turn, _), (other, _) = said_by(logged_past(2), 0)
    for what in (
        Exclusion(users=frozenset((POISONER,))),
        Exclusion(turns=frozenset((turn.inference_id,))),
        Exclusion(begin=START, end=START + timedelta(seconds=1)),
        Exclusion(namespace=Namespace("default"), users=frozenset((POISONER,)), begin=START),
    ):
        assert (what.covers(turn), what.covers(other)) == (True, False)
        assert not msgspec.structs.replace(what, namespace=Namespace("acme")).covers(turn)
        assert not msgspec.structs.replace(what, end=START).covers(turn)


@pytest.mark.parametrize("serves", [False, True])
def test_what_is_excluded_trains_no_more_whatever_is_said_of_it_later(make_world: MakeWorld, serves: bool) -> None:
    """Neither an amended reward, nor one taken back, nor one for another's turn of which she spoke.

    So it is also before releases have led back from what serves."""
    world = make_world("a")
    past = said_by(logged_past(8), 0, 1)
    learner = world.learner(settings=PATIENT)
    world.tell(*past)
    settle(learner)
    if serves:
        world.release(2)
    exclude(world, Exclusion(users=frozenset((POISONER,))))
    again = [(turn, make_reward(turn, 0.7, revision=1, after_s=30)) for turn, _ in past]
    void = msgspec.structs.replace(make_reward(past[1][0], 0.0, revision=1, after_s=30), void=True)
    spoken_of = msgspec.structs.replace(again[2][1], said_by=(UserHash("ada"), POISONER))
    world.tell(again[0], (past[1][0], void), (past[2][0], spoken_of), *again[3:], *logged_past(3, seed=1))
    settle(learner)
    newest = manifests(world)[-1]
    learner.close()
    hers, voided, spoken = (turn.inference_id for turn, _ in past[:3])
    assert newest.parent == base_ref(2 if serves else 1)
    drops = {"excluded": (hers, voided, spoken)} if serves else {"excluded": (hers, spoken), "void": (voided,)}
    assert newest.drops == drops
    assert {record.inference_id for record in newest.turns}.isdisjoint((hers, voided, spoken))
    assert len(newest.applied) == (5 if serves else 0)


@pytest.mark.parametrize("killed", [False, True])
def test_a_lineage_that_goes_back_is_as_if_it_had_never_been(make_world: MakeWorld, killed: bool) -> None:
    """What others said meanwhile is learned again, in its order, before what comes next: to the same bits.

    So it is for a learner that is killed with the order given, and again in the middle of learning again."""
    first, second, third = (logged_past(8, seed=seed) for seed in range(3))
    second, third, fourth = said_by(later(second, 9), 0, 3, 4, 6), later(third, 18), later(logged_past(8, seed=3), 27)
    world, straight = make_world("poisoned"), make_world("straight")
    one_ahead = {**PATIENT, "checkpoints.max_lead": 1}
    learner = world.learner(settings=one_ahead)
    for version, past in enumerate((first, second, third), 2):
        hear(world, learner, past)
        world.release(version)
    exclude(world, Exclusion(users=frozenset((POISONER,))))
    for version in (4, 3):
        world.release(version, "rolled_back")
    world.release(2)
    amended = [(turn, make_reward(turn, 0.9, revision=1, after_s=15)) for turn, _ in (second[1], third[5])]
    for pair in amended:  # one before it has gone back, and one while it waits for a release in the middle of it
        world.tell(pair)
        if killed:
            learner._checkpointing.wait()  # for the one under way, since its threads outlive no process
            learner._held.close()  # without a last checkpoint
            learner = world.learner(settings=one_ahead)
        settle(learner)
    world.release(5)
    hear(world, learner, fourth)
    learner.close()

    other = straight.learner(settings=PATIENT)
    hear(
        straight, other, [*first, *(each for each in second if each[0].user_id != POISONER), *third, *amended, *fourth]
    )
    other.close()
    made, never = manifests(world)[3:], manifests(straight)[1:]
    assert [one.parent for one in made] == [base_ref(2), base_ref(5)]
    assert [[record.inference_id for record in one.turns] for one in made] == [
        [record.inference_id for record in one.turns] for one in never
    ]
    assert len(made) == len(never) > 1
    assert [digest(world, one.version) for one in made] == [digest(straight, one.version) for one in never]
    assert prove_exactly_once([*manifests(world)[:1], *made]) == 8 + sum(len(one.turns) for one in never)


@pytest.mark.parametrize("moment", ["before its look", "after its look"])
def test_what_is_being_made_when_the_order_comes_serves_nobody(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It is published as refused, by what its publisher finds at the last look, also where the order comes after it."""
    world = make_world("a")
    past = said_by(logged_past(16), 0)
    orders, misled = iter((Exclusion(users=frozenset((POISONER,))),)), Relearning.misled

    def look(self: Relearning, rewards: Sequence[Reward]) -> str | None:
        found = misled(self, rewards) if moment == "after its look" else None
        for what in orders:
            exclude(world, what)
        return found if moment == "after its look" else misled(self, rewards)

    monkeypatch.setattr(Relearning, "misled", look)
    learner = world.learner(settings=PATIENT)
    for pairs in (past[:8], past[8:]):
        world.tell(*pairs)
        settle(learner)
    learner.close()
    with world.store.look() as view:
        verdicts = {policy.version: policy.verdict for policy, _ in view.policies.newest(9)}
    refused = verdicts[base_ref(2)]
    assert refused is not None
    assert (refused.action, refused.why) == ("refuse", "1 of its turns were excluded while it was made")
    assert verdicts[base_ref(3)] is None
    assert [one.parent for one in manifests(world)] == [base_ref(1), base_ref(1)]
    ids = [turn.inference_id for turn, _ in past]
    assert [record.inference_id for record in manifests(world)[1].turns] == ids[1:9]


def test_what_was_abandoned_for_another_reason_stays_abandoned(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    for seed in range(2):
        world.tell(*logged_past(8, seed=seed))
        settle(learner)
    exclude(world, Exclusion(users=frozenset((POISONER,))))
    world.release(3)
    world.release(3, "rolled_back")
    world.release(2)
    settle(learner)
    learner.close()
    assert len(manifests(world)) == 2
    assert not learner._relearning.again


def later(past: Said, seconds: float) -> Said:
    by = timedelta(seconds=seconds)
    moved = [(msgspec.structs.replace(turn, received_at=turn.received_at + by), reward.value) for turn, reward in past]
    return [(turn, make_reward(turn, value)) for turn, value in moved]
