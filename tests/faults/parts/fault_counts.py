"""The fate of everything acknowledged (stored, rewarded, trained) and of the requests that failed."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fault_users import Failure, Users
from fault_world import World
from service_tree import wait_for

from core.errors import Unavailable
from core.events import Completion, Outcome, Reward
from core.ids import InferenceId, PolicyRef
from learner.versions.manifest import Manifest, decode, prove_exactly_once

SETTLED_TIMEOUT_S = 300
_PART = 500  # of one query
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FaultCounts:
    """Counts of a fault's outcome; all but the first four must be 0."""

    turns: int
    """Turns acknowledged as logged."""
    outcomes: int
    trained: int
    requests: int
    lost_turns: int
    lost_outcomes: int
    unrewarded: int
    untrained: int
    """Rewarded, trainable turns that were neither trained nor dropped for a reason."""
    rewarded_twice: int
    trained_twice: int
    failed: int
    failed_at_killed: int
    """Requests to a replica that was down at that time: may be any number."""

    @property
    def lost(self) -> int:
        return self.lost_turns + self.lost_outcomes + self.unrewarded + self.untrained

    @property
    def twice(self) -> int:
        return self.rewarded_twice + self.trained_twice


@dataclass(frozen=True)
class _Fate:
    turns: dict[InferenceId, Completion]
    outcomes: dict[str, Outcome]
    rewards: list[Reward]


def settle(world: World, users: Users) -> FaultCounts:
    """Wait until everything acknowledged by now is learned from, while users go on; then stop them and count."""
    judged = set(users.outcomes.values())
    lineage = Lineage(world)
    _wait(lambda: not _missing(world, users, judged, lineage))
    users.leave()
    _wait(lambda: not _lost_from_store(_fate(world, users.turns), users))
    counts = _count(world, users, judged, lineage)
    logger.warning("%s", counts)
    return counts


def _wait(condition: object) -> None:
    """Wait for the condition; if it never comes true, the counts will show it."""
    deadline_s = time.monotonic() + SETTLED_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            if condition():  # type: ignore[operator]
                return
        except Unavailable as error:  # our own connections may be older than a service
            logger.info("counting: %s", error)
        time.sleep(0.5)


def _missing(world: World, users: Users, judged: set[InferenceId], lineage: "Lineage") -> bool:
    fate = _fate(world, sorted(judged))
    # The scorer may be ahead of the writer: what is not stored yet is not known to be trainable either.
    is_stored = judged <= fate.turns.keys()
    return not is_stored or bool(_unrewarded(fate, judged) or lineage.without(_to_train(fate)))


def _lost_from_store(fate: _Fate, users: Users) -> bool:
    judged = set(users.outcomes.values())
    return bool(set(users.turns) - fate.turns.keys() or users.outcomes.keys() - fate.outcomes.keys()) or bool(
        _unrewarded(fate, judged)
    )


def _fate(world: World, ids: Sequence[InferenceId]) -> _Fate:
    found = _Fate({}, {}, [])
    with world.foundation.store.look() as view:
        for start in range(0, len(ids), _PART):
            part = ids[start : start + _PART]
            found.turns.update(view.turns.get_many(part))
            found.outcomes.update({each.outcome_id: each for each in view.outcomes.of_turns(part)})
            found.rewards.extend(view.rewards.of_turns(part))
    return found


def _unrewarded(fate: _Fate, judged: set[InferenceId]) -> set[InferenceId]:
    return judged - {reward.inference_id for reward in fate.rewards if reward.outcome_ids}


def _to_train(fate: _Fate) -> set[InferenceId]:
    rewarded = {reward.inference_id for reward in fate.rewards}
    return {one for one, turn in fate.turns.items() if turn.trainable and turn.token_ids and one in rewarded}


class Lineage:
    """The manifests from the anchor to the newest version, each read once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._read: dict[PolicyRef, tuple[Manifest, PolicyRef]] = {}
        """The manifests read so far, each with its parent."""

    def manifests(self) -> list[Manifest]:
        """Return the manifests, oldest first.

        Raises StoreUnavailable."""
        lineage: list[Manifest] = []
        with self._world.foundation.store.look() as view:
            version: PolicyRef | None = view.policies.newest(1)[0][0].version
            while version is not None:
                if version not in self._read:
                    policy = view.policies.get(version)
                    if policy is None or policy.manifest is None or policy.parent is None:
                        break  # the anchor
                    self._read[version] = decode(self._world.foundation.blobs.get(policy.manifest)), policy.parent
                manifest, version = self._read[version]
                lineage.append(manifest)
        return lineage[::-1]

    def without(self, ids: set[InferenceId]) -> set[InferenceId]:
        """Return the turns that no manifest mentions."""
        manifests = self.manifests()
        told = {record.inference_id for manifest in manifests for record in manifest.turns}
        return ids - told - {one for manifest in manifests for dropped in manifest.drops.values() for one in dropped}


def _count(world: World, users: Users, judged: set[InferenceId], lineage: Lineage) -> FaultCounts:
    fate, manifests = _fate(world, users.turns), lineage.manifests()
    steps = Counter(
        (record.inference_id, record.revision)
        for manifest in manifests
        for record in manifest.turns
        if record.dropped is None
    )
    meanings = Counter((reward.inference_id, reward.outcome_ids) for reward in fate.rewards)
    twice = sum(count - 1 for count in steps.values())
    if not twice:
        prove_exactly_once(manifests)
    for failure in others(users.failures, world):
        logger.error("failed: %s", failure)
    untrained = lineage.without(_to_train(fate) & judged)
    if untrained:
        logger.error("untrained: %s", _where(world, untrained))
    return FaultCounts(
        turns=len(users.turns),
        outcomes=len(users.outcomes),
        trained=sum(1 for inference_id, _ in steps if inference_id in fate.turns),
        requests=users.requests,
        lost_turns=len(set(users.turns) - fate.turns.keys()),
        lost_outcomes=len(users.outcomes.keys() - fate.outcomes.keys()),
        unrewarded=len(_unrewarded(fate, set(users.outcomes.values()))),
        untrained=len(untrained),
        rewarded_twice=sum(count - 1 for count in meanings.values()),
        trained_twice=twice,
        failed=len(others(users.failures, world)),
        failed_at_killed=len(users.failures) - len(others(users.failures, world)),
    )


def _where(world: World, ids: set[InferenceId]) -> dict[str, object]:
    """Return the versions of abandoned branches that trained some of these turns, and the rewards of the others.

    Each version comes with its release state."""
    found: dict[str, object] = {}
    with world.foundation.store.look() as view:
        for policy, state in view.policies.newest(10_000):
            if policy.manifest is None:
                continue
            made = decode(world.foundation.blobs.get(policy.manifest))
            if here := ids & {record.inference_id for record in made.turns}:
                found[f"version {policy.version} of {policy.parent}"] = (len(here), state)
                ids = ids - here
        found["nowhere"] = [(reward.inference_id, reward.decided_at) for reward in view.rewards.of_turns(ids)]
    return found


def others(failures: Sequence[Failure], world: World) -> list[Failure]:
    """Return the failures that no killed replica explains."""

    def is_explained(failure: Failure) -> bool:
        return any(
            failure.url == url and failure.began_s < back_s and failure.failed_s > killed_s
            for url, killed_s, back_s in world.killed
        )

    return [failure for failure in failures if not is_explained(failure)]


def wait_for_metric(world: World, name: str, line: str, value: float) -> None:
    wait_for(lambda: world.metric(name, line) >= value, what=f"{line} of {name}")
