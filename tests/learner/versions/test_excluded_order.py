"""Whatever comes first, exclusion, rollback or rejection: what is learned again in the end is the same."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import pytest
from logged_world import World, lineage_of_newest, logged_past, make_reward, settle

from core.events import Completion, Reward
from core.ids import InferenceId, PolicyRef, UserHash, base_ref
from core.operations.exclusions import Exclusion, Wish
from learner.stage import Learner
from learner.versions.exclusion_orders import OrdersOfExclusions
from learner.versions.provenance import learned_by

MakeWorld = Callable[[str], World]
Pair = tuple[Completion, Reward]
MALLORY, TRENT = UserHash("mallory"), UserHash("trent")
PATIENT = {"batch.max_wait_s": 3600.0}  # so that all updates are of eight turns


def spoken(batch: int, *liars: UserHash) -> list[Pair]:
    """Return eight turns of their own time; the first of them are the liars'."""
    by = timedelta(minutes=batch)
    pairs = list[Pair]()
    for number, (turn, reward) in enumerate(logged_past(8, seed=batch)):
        user = liars[number] if number < len(liars) else UserHash("ada")
        moved = msgspec.structs.replace(turn, received_at=turn.received_at + by, user_id=user)
        pairs.append((moved, make_reward(moved, reward.value)))
    return pairs


def learn(world: World, learner: Learner, *batches: Sequence[Pair]) -> None:
    """Let a learner make a version of each batch."""
    for batch in batches:
        for pair in batch:
            world.tell(pair)
            settle(learner)


def order(world: World, *users: UserHash) -> None:
    orders = OrdersOfExclusions(world.store, world.blobs, "local", world.clock)
    orders.order(Wish(users=users), "they lie", "shell:ada", lambda work, given: None)


def exclude(world: World, *users: UserHash) -> None:
    """Exclude without an order to go back, as where no version learned from it yet."""
    with world.store.work() as work:
        work.exclusions.add(Exclusion(users=frozenset(users)), "they lie", "shell:ada", world.clock.now())


def wanted(world: World, learner: Learner) -> list[tuple[InferenceId, int]]:
    """Return what the lineage learned, and what waits to be learned, each with its revision."""
    rewards, relearning = learned_by(learner._lineage.versions, world.blobs), learner._relearning
    learned = [(reward.inference_id, reward.revision) for reward in rewards]
    waits = [*learner._backlog.pending.values(), *relearning.again, *relearning.later]
    return sorted({*learned, *((reward.inference_id, reward.revision) for reward in waits)})


def keys(*pairs: Pair) -> list[tuple[InferenceId, int]]:
    return sorted((turn.inference_id, reward.revision) for turn, reward in pairs)


def test_a_waiting_reward_is_compared_with_what_is_learned_before_it(make_world: MakeWorld) -> None:
    """A reward said to be 0.9 meanwhile, and then again what it was at first, ends as what it was at first."""
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    first, second, third = spoken(0), spoken(1, MALLORY), spoken(2)
    turn, reward = first[0]
    meanwhile = (turn, make_reward(turn, 0.9, revision=1, after_s=70))
    again = (turn, make_reward(turn, reward.value, revision=2, after_s=180))
    learn(world, learner, first, [*second[:7], meanwhile], third)
    for version in (2, 3, 4):
        world.release(version)
    learn(world, learner, [again])
    exclude(world, MALLORY)
    for version in (4, 3):
        world.release(version, "rolled_back")
    world.release(2)
    learn(world, learner, spoken(4))
    learner.close()
    last = [each for one in lineage_of_newest(world) for each in one.rewards if each.inference_id == turn.inference_id]
    assert [(each.revision, each.value) for each in last] == [(0, reward.value), (1, 0.9), (2, reward.value)]


def test_a_reward_equal_to_an_excluded_one_counts(make_world: MakeWorld) -> None:
    """It was passed over since the lineage had learned so already, which it did from the liar alone."""
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    first, second = spoken(0), spoken(1)
    turn, _ = first[0]
    hers = msgspec.structs.replace(make_reward(turn, 0.9, revision=1, after_s=70), said_by=(MALLORY,))
    learn(world, learner, first, [*second[:7], (turn, hers)])
    world.release(2)
    world.release(3)
    his = make_reward(turn, 0.9, revision=2, after_s=180)
    with world.store.work() as work:
        work.rewards.put([(0, hers), (0, his)])
    learn(world, learner, [(turn, his)])
    exclude(world, MALLORY)
    world.release(3, "rolled_back")
    world.release(2)
    settle(learner)
    learner.close()
    assert wanted(world, learner) == keys(*first, *second[:7], (turn, his))


@pytest.mark.parametrize("comes_first", ["the rejection", "the rollback"])
def test_a_clean_candidate_left_before_its_misled_ancestor_is_learned_again(
    make_world: MakeWorld, comes_first: str
) -> None:
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    first, second, third = spoken(0), spoken(1, MALLORY), spoken(2)
    learn(world, learner, first)
    world.release(2)
    learn(world, learner, second)
    world.release(3)
    learn(world, learner, third)
    order(world, MALLORY)
    steps = [(4, "rejected"), (3, "rolled_back")]
    for version, state in steps if comes_first == "the rejection" else reversed(steps):
        world.release(version, state)
        settle(learner)
    world.release(2)
    settle(learner)
    learner.close()
    assert wanted(world, learner) == keys(*first, *second[1:], *third)


@pytest.mark.parametrize("state", ["canary", "superseded"])
def test_a_misled_version_that_users_try_or_tried_is_not_built_upon(make_world: MakeWorld, state: str) -> None:
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    first, second, third = spoken(0), spoken(1, MALLORY), spoken(2)
    learn(world, learner, first)
    world.release(2)
    learn(world, learner, second)
    world.release(3, "canary")
    settle(learner)
    if state == "superseded":
        world.release(3, state)
    order(world, MALLORY)
    learn(world, learner, third)
    learner.close()
    assert lineage_of_newest(world)[-1].parent == base_ref(2)
    assert wanted(world, learner) == keys(*first, *second[1:], *third)


def test_candidates_before_the_first_use_stay(make_world: MakeWorld) -> None:
    """So it is also where the misled ones are seen rejected before the exclusion itself is seen."""
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    first, second, third = spoken(0), spoken(1), spoken(2, MALLORY)
    learn(world, learner, first)
    world.release(2)
    learn(world, learner, second, third)
    order(world, MALLORY)
    world.release(4, "rejected")
    settle(learner)
    learner.close()
    assert learner.newest == base_ref(3)
    assert wanted(world, learner) == keys(*first, *second, *third[1:])


@pytest.mark.parametrize("looks", ["after each", "at the end"])
@pytest.mark.parametrize("first", ["the exclusion", "the rollback"])
def test_an_exclusion_and_a_rollback_come_to_the_same(make_world: MakeWorld, first: str, looks: str) -> None:
    """An operator goes back to version 2 for a reason of his own; another excludes who lied in version 4.

    What others said from version 4 on is learned again, and what version 3 learned is not."""
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    batches = [spoken(0), spoken(1), spoken(2, MALLORY), spoken(3)]
    learn(world, learner, *batches)
    for version in (2, 3, 4, 5):
        world.release(version)
    settle(learner)
    if first == "the exclusion":
        order(world, MALLORY)
        _go_back(world, (5, 4), 3)
        if looks == "after each":
            learner._follow_releases()
        _go_back(world, (3,), 2)
    else:
        _go_back(world, (5, 4, 3), 2)
        if looks == "after each":
            settle(learner)
        order(world, MALLORY)
    settle(learner)
    learner.close()
    assert wanted(world, learner) == keys(*batches[0], *batches[2][1:], *batches[3])


def _go_back(world: World, undone: Sequence[int], to: int) -> None:
    for version in undone:
        world.release(version, "rolled_back")
    world.release(to)


@pytest.mark.parametrize("liars", [(MALLORY, TRENT), (TRENT, MALLORY)])
def test_two_exclusions_come_to_the_same_whichever_is_first(make_world: MakeWorld, liars: Sequence[UserHash]) -> None:
    """The second is ordered while the first waits to be carried out, and leads forward to nothing that it left."""
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    batches = [spoken(0), spoken(1, TRENT), spoken(2, MALLORY), spoken(3)]
    learn(world, learner, *batches)
    for version in (2, 3, 4, 5):
        world.release(version)
    settle(learner)
    for liar in liars:
        order(world, liar)
    assert _ordered_last(world) == base_ref(2)
    _go_back(world, (5, 4, 3), 2)
    settle(learner)
    learner.close()
    assert wanted(world, learner) == keys(*batches[0], *batches[1][1:], *batches[2][1:], *batches[3])


def test_an_exclusion_leads_forward_from_no_rollback_that_waits(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    learn(world, learner, spoken(0), spoken(1), spoken(2, MALLORY))
    learner.close()
    for version in (2, 3, 4):
        world.release(version)
    with world.store.work() as work:
        work.orders.give("local", "rollback", base_ref(2), "it is rude", "bob", world.clock.now())
    order(world, MALLORY)
    assert _ordered_last(world) == base_ref(2)
    with world.store.look() as view:
        (only,) = view.exclusions.after()
    assert only.found.left == (base_ref(4),)


def _ordered_last(world: World) -> PolicyRef:
    with world.store.look() as view:
        return view.orders.unfinished("local")[-1].version


def test_versions_left_because_none_between_can_serve_are_learned_again(make_world: MakeWorld) -> None:
    """Version 3 never served: the way back from 4 leads to 2, and what 3 learned comes with the rest."""
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    batches = [spoken(0), spoken(1), spoken(2, MALLORY)]
    learn(world, learner, *batches)
    world.release(2)
    world.release(3, "superseded")
    world.release(4)
    settle(learner)
    order(world, MALLORY)
    _go_back(world, (4,), 2)
    settle(learner)
    learner.close()
    assert wanted(world, learner) == keys(*batches[0], *batches[1], *batches[2][1:])


def test_deleted_turns_are_still_known_to_be_excluded(make_world: MakeWorld) -> None:
    """What was excluded stood in the store when the order came, and had to leave it before the learner went back."""
    world = make_world("a")
    learner = world.learner(settings=PATIENT)
    first, second = spoken(0), spoken(1, MALLORY, MALLORY)
    learn(world, learner, first, second)
    for version in (2, 3):
        world.release(version)
    settle(learner)
    order(world, MALLORY)
    _delete(world, [turn.inference_id for turn, _ in second[:2]])
    _go_back(world, (3,), 2)
    settle(learner)
    learner.close()
    assert wanted(world, learner) == keys(*first, *second[2:])


def _delete(world: World, ids: Sequence[InferenceId]) -> None:
    with world.store.work() as work:
        connection = work.turns._connection  # as retention does
        for each in ids:
            connection.exec_driver_sql("DELETE FROM turns WHERE inference_id = ?", (each,))


def test_a_full_backlog_drops_nothing_that_is_learned_again(make_world: MakeWorld) -> None:
    """A workload with a share of an update waits for several updates, and nothing of it is dropped meanwhile."""
    world = make_world("a")
    shares = {"mixture.workloads": {"write": 0.5}, "batch.backlog_turns": 8}
    learner = world.learner(settings={**PATIENT, **shares})
    batches = [spoken(0), spoken(1, *[MALLORY] * 4), spoken(2)]
    for batch in batches:
        world.tell(*batch)
        settle(learner)
        world.clock.advance_to(batch[-1][1].decided_at + timedelta(hours=2))
        settle(learner)
    assert len(lineage_of_newest(world)) == 6, "half an update of them at a time"
    world.release(2)
    settle(learner)
    exclude(world, MALLORY)
    settle(learner)
    learner.close()
    assert not learner.left_out["backlog_full"]
    learned = [reward.inference_id for one in lineage_of_newest(world) for reward in one.rewards]
    assert learned == [turn.inference_id for batch in batches for turn, _ in batch if turn.user_id != MALLORY]
