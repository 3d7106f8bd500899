"""The fate of everything that either cluster acknowledged: stored, rewarded and trained at home, stored at the edge."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.clusters.cluster_users import Users
from core.events import Completion, Outcome, Reward
from core.ids import InferenceId, PolicyRef
from learner.versions.manifest import Manifest, decode, prove_exactly_once
from onward.wiring.foundation import Foundation

SETTLED_TIMEOUT_S = 300.0
_LOOK_AGAIN_S = 0.5
_PART = 500  # of one query


@dataclass(frozen=True)
class Fate:
    """What a cluster's store has of some turns."""

    turns: dict[InferenceId, Completion]
    outcomes: set[str]
    rewards: list[Reward]

    def to_train(self, judged: set[InferenceId]) -> set[InferenceId]:
        rewarded = {reward.inference_id for reward in self.rewards}
        return {one for one, turn in self.turns.items() if turn.trainable and turn.token_ids} & rewarded & judged

    def unrewarded(self, judged: set[InferenceId]) -> set[InferenceId]:
        return judged - {reward.inference_id for reward in self.rewards if reward.outcome_ids}


@dataclass(frozen=True)
class Counts:
    """What was acknowledged, and what became of it."""

    turns: int
    outcomes: int
    trained: set[InferenceId]
    lost_turns: int
    """Acknowledged by a cluster, and not in home's store, or not in its own."""
    lost_outcomes: int
    unrewarded: int
    untrained: int
    """Rewarded turns that were neither trained nor dropped for a reason."""
    rewarded_twice: int
    trained_twice: int

    @property
    def lost(self) -> int:
        return self.lost_turns + self.lost_outcomes + self.unrewarded + self.untrained

    @property
    def twice(self) -> int:
        return self.rewarded_twice + self.trained_twice


def fate_of(foundation: Foundation, turns: Sequence[InferenceId]) -> Fate:
    found, outcomes = Fate({}, set(), []), list[Outcome]()
    with foundation.store.look() as view:
        for start in range(0, len(turns), _PART):
            part = turns[start : start + _PART]
            found.turns.update(view.turns.get_many(part))
            outcomes += view.outcomes.of_turns(part)
            found.rewards.extend(view.rewards.of_turns(part))
    found.outcomes.update(outcome.outcome_id for outcome in outcomes)
    return found


class Lineage:
    """The manifests from the anchor to home's newest version, each read once."""

    def __init__(self, home: Foundation) -> None:
        self._home = home
        self._read: dict[PolicyRef, tuple[Manifest, PolicyRef]] = {}
        """Each manifest with its version's parent."""

    def manifests(self) -> list[Manifest]:
        """Return the manifests, oldest first."""
        lineage: list[Manifest] = []
        with self._home.store.look() as view:
            version: PolicyRef | None = view.policies.newest(1)[0][0].version
            while version is not None:
                if version not in self._read:
                    policy = view.policies.get(version)
                    if policy is None or policy.manifest is None or policy.parent is None:
                        break  # the anchor
                    self._read[version] = decode(self._home.blobs.get(policy.manifest)), policy.parent
                manifest, version = self._read[version]
                lineage.append(manifest)
        return lineage[::-1]


def without(manifests: Sequence[Manifest], turns: set[InferenceId]) -> set[InferenceId]:
    """Return the turns that no manifest mentions, neither as trained nor as dropped."""
    told = {record.inference_id for manifest in manifests for record in manifest.turns}
    return turns - told - {one for manifest in manifests for dropped in manifest.drops.values() for one in dropped}


def settle(home: Foundation, edge: Foundation, at_home: Users, at_edge: Users) -> Counts:
    """Wait until what was judged by now is learned from, while users go on; then let them go, and count.

    What does not come within the time is counted as lost."""
    lineage, everyone = Lineage(home), (at_home, at_edge)
    judged = {turn for users in everyone for turn in list(users.outcomes.values())}
    _wait(lambda: not _unlearned(home, lineage, judged))
    for users in everyone:
        users.leave()
    _wait(lambda: not any(_lost(home, edge, at_home, at_edge)))
    return _count(home, edge, at_home, at_edge, lineage, judged)


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SETTLED_TIMEOUT_S
    while time.monotonic() < deadline_s and not condition():
        time.sleep(_LOOK_AGAIN_S)


def _unlearned(home: Foundation, lineage: Lineage, judged: set[InferenceId]) -> set[InferenceId]:
    fate = fate_of(home, sorted(judged))
    return fate.unrewarded(judged) | without(lineage.manifests(), fate.to_train(judged))


def _lost(home: Foundation, edge: Foundation, at_home: Users, at_edge: Users) -> tuple[int, int, int]:
    """Return how many turns and outcomes are not where they should be, and how many of the outcomes have no reward."""
    everyone = (at_home, at_edge)
    turns = {turn for users in everyone for turn in users.turns}
    judged = {turn for users in everyone for turn in users.outcomes.values()}
    there, here = fate_of(home, sorted(turns)), fate_of(edge, sorted(at_edge.turns))
    lost_turns = (turns - there.turns.keys()) | (at_edge.turns.keys() - here.turns.keys())
    outcomes = at_home.outcomes.keys() | at_edge.outcomes.keys()
    lost_outcomes = (outcomes - there.outcomes) | (at_edge.outcomes.keys() - here.outcomes)
    return len(lost_turns), len(lost_outcomes), len(there.unrewarded(judged))


def _count(
    home: Foundation, edge: Foundation, at_home: Users, at_edge: Users, lineage: Lineage, judged: set[InferenceId]
) -> Counts:
    turns = sorted(at_home.turns.keys() | at_edge.turns.keys())
    fate, manifests = fate_of(home, turns), lineage.manifests()
    trained = [each for made in manifests for each in made.turns if each.dropped is None]
    steps = Counter((each.inference_id, each.revision) for each in trained)
    meanings = Counter((reward.inference_id, reward.outcome_ids) for reward in fate.rewards)
    trained_twice = sum(count - 1 for count in steps.values())
    if not trained_twice:
        prove_exactly_once(manifests)
    lost_turns, lost_outcomes, unrewarded = _lost(home, edge, at_home, at_edge)
    return Counts(
        turns=len(turns),
        outcomes=len(at_home.outcomes) + len(at_edge.outcomes),
        trained={turn for turn, _ in steps} & fate.turns.keys(),
        lost_turns=lost_turns,
        lost_outcomes=lost_outcomes,
        unrewarded=unrewarded,
        untrained=len(without(manifests, fate.to_train(judged))),
        rewarded_twice=sum(count - 1 for count in meanings.values()),
        trained_twice=trained_twice,
    )
