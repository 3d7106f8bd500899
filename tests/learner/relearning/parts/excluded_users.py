"""A past with two users, of whom one is to be excluded."""

from collections.abc import Mapping, Sequence

import msgspec
from logged_world import World, lineage_of_newest, logged_past, settle

from core.events import Completion, Reward
from core.ids import Namespace, PolicyRef, UserHash
from core.operations.exclusions import Exclusion, Relearning, Selection
from learner.stage import Learner

Pair = tuple[Completion, Reward]
USUAL: Mapping[str, object] = {"batch.min_turns": 2, "batch.max_wait_s": 0.5}
MALLORY = UserHash("mallory")


def of_user(pairs: Sequence[Pair], users: Mapping[int, str]) -> list[Pair]:
    """Give turns to users, by their places; the others are Alice's."""
    return [
        (msgspec.structs.replace(turn, user_id=UserHash(users.get(place, "alice"))), reward)
        for place, (turn, reward) in enumerate(pairs)
    ]


def rounds() -> list[list[Pair]]:
    """Five batches; Mallory has turns in the second, and in the fourth."""
    past = [of_user(logged_past(8, seed=seed), {}) for seed in range(5)]
    past[1] = of_user(past[1], {2: "mallory", 5: "mallory"})
    past[3] = of_user(past[3], {0: "mallory"})
    return past


def teach(world: World, learner: Learner, past: Sequence[Sequence[Pair]]) -> None:
    for each in past:
        if each:
            world.tell(*each)
            settle(learner)


def without(past: Sequence[Sequence[Pair]], *users: str) -> list[list[Pair]]:
    return [[pair for pair in each if pair[0].user_id not in users] for each in past]


def exclude(world: World, why: str = "an alarm", **criteria: object) -> int:
    selection = Selection(namespace=Namespace("default"), **{"users": (MALLORY,), **criteria})  # type: ignore[arg-type]
    with world.store.work() as work:
        return work.exclusions.give(selection, why, "ops", world.clock.now())


def order(world: World, number: int) -> Exclusion:
    with world.store.look() as view:
        found = view.exclusions.get(number)
    assert found is not None
    return found


def came_of(world: World, number: int) -> Relearning:
    found = order(world, number).relearning
    assert found is not None
    return found


def digest(world: World, version: PolicyRef | None) -> str:
    assert version is not None
    with world.store.look() as view:
        policy = view.policies.get(version)
    assert policy is not None
    return policy.digest


def states(world: World) -> dict[int, str]:
    with world.store.look() as view:
        return {policy.version.version: state for policy, state in view.policies.newest(100)}


def trained_on(world: World) -> set[str]:
    return {reward.inference_id for made in lineage_of_newest(world) for reward in made.rewards}
