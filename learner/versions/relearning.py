"""Learning again after an exclusion: what the abandoned versions learned, without the excluded turns.

The learner goes back to before the first use of an excluded turn as it goes back for any other reason, by following
releases. The other rewards of the abandoned versions are then learned again, in the order in which they were decided,
and before all later ones."""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from core.events import Reward
from core.ids import InferenceId, PolicyRef
from core.operations.exclusions import EXCLUDED, Excluded, RewardKey, is_excluded
from core.ports import Blobs, Store
from core.settings import BatchSettings
from core.store.work import View
from learner.batches.backlog import Backlog
from learner.sequences.scored import ScoredTurn
from learner.versions.journal import Entry
from learner.versions.lineage import Lineage
from learner.versions.provenance import learned_by, turns_of

_AT_ONCE: Final = 500  # turns or versions in one query
logger = logging.getLogger(__name__)
Drop = Callable[[InferenceId, str], None]


class Relearning:
    """Admits rewards to the backlog: first those to be learned again, then those that came meanwhile, then new ones.

    Only as many enter the backlog as the next batch takes, so that batches are what they would have been."""

    def __init__(self, store: Store, blobs: Blobs, backlog: Backlog, drop: Drop) -> None:
        self._store, self._blobs = store, blobs
        self._backlog, self._drop = backlog, drop
        self._ordered: list[Excluded] = []
        self._learned = set[RewardKey]()  # excluded rewards that versions learned from, by the orders' findings
        self.heeded = 0
        """The newest exclusion for which the lineage was checked."""
        self.again = deque[Reward]()
        self.later = deque[Reward]()
        """Rewards that came while others are learned again. Like the backlog, it is bounded."""

    def stand_where(self, entry: Entry) -> None:
        self.again, self.later, self.heeded = deque(entry.again), deque(entry.later), entry.heeded

    # ------------------------------------------------------------------------------------------ admission

    def admit(self, reward: Reward, most: int) -> None:
        """Let a reward wait, behind those that are learned again, if any; when too many wait, the oldest is dropped."""
        if not (self.again or self.later):
            self._add(reward, most)
            return
        self.later.append(reward)
        if len(self.later) > most:
            self._drop(self.later.popleft().inference_id, "backlog_full")

    def feed(self, settings: BatchSettings, now: datetime) -> None:
        """Move as many waiting rewards into the backlog as the next batch takes.

        A full backlog takes none of them, unless it could make no batch without. They do not count as a rush, for
        which the backlog passes over its oldest rewards."""
        while (waiting := self.again or self.later) and not self._backlog.is_full(settings, now):
            has_room = len(self._backlog.pending) < settings.backlog_turns
            if not has_room and self._backlog.ready_in_s(settings, now) < math.inf:
                break
            self._add(waiting.popleft(), settings.backlog_turns)
            self._backlog.come = 0

    def _add(self, reward: Reward, most: int) -> None:
        if self._backlog.add(reward):
            for passed_over, why in self._backlog.trim(most):
                self._drop(passed_over.inference_id, why)

    def refusal(self, scored: ScoredTurn) -> str | None:
        """Return why the turn may not train, whatever its reward is; None where it may."""
        return EXCLUDED if is_excluded(scored.turn, scored.reward, self._ordered) else None

    # ------------------------------------------------------------------------------------------ going back

    def look_again(self) -> None:
        """Read the exclusions that were ordered since the last look."""
        with self._store.look() as view:
            news = view.exclusions.after(self.newest)
        self._ordered += news
        self._learned.update(*(each.found.learned for each in news))

    @property
    def newest(self) -> int:
        """The number of the newest known exclusion; 0: none."""
        return self._ordered[-1].exclusion_id if self._ordered else 0

    def is_overtaken(self, view: View) -> bool:
        """Return whether there is an exclusion that is not known here yet."""
        return bool(view.exclusions.after(self.newest))

    def misled(self, rewards: Sequence[Reward]) -> str | None:
        """Return why an update by these rewards may not serve, by the exclusions as they are now; None where it may."""
        self.look_again()
        excluded = self._excluded_among(rewards)
        return f"{len(excluded)} of its turns were excluded while it was made" if excluded else None

    def must_go_back_to(self, lineage: Lineage) -> PolicyRef | None:
        """Return the version to go back to for new exclusions, None where there is no need.

        It is the one before the first version after the live one that is left because of an exclusion, or refused.
        From the live version and those before it, releases lead back. If an exclusion names versions that were
        abandoned before, their other rewards are learned again at once."""
        self.look_again()
        if self.newest == self.heeded or lineage.live not in lineage.versions:
            return None
        roots = {version for each in self._ordered if each.exclusion_id > self.heeded for version in each.found.left}
        self.heeded = self.newest
        if abandoned := self._from_on(roots.difference(lineage.versions)):
            self._learn_again(abandoned, list(self._backlog.pending.values()))
        after_live = lineage.after_live()
        left = self._left(after_live, after_live)
        first = next((version for version in after_live if version in left or version in lineage.refused), None)
        return lineage.versions[lineage.versions.index(first) - 1] if left and first is not None else None

    @contextmanager
    def going_back(self, lineage: Lineage) -> Iterator[None]:
        """Learn again the versions that the lineage leaves within this context because of an exclusion.

        Other versions are left for reasons of their own and are not learned again. Rewards that wait in the backlog
        keep their place behind all that is learned again, and are compared with the weights as they are then."""
        before, waiting = list(lineage.versions), list(self._backlog.pending.values())
        yield
        self.look_again()
        gone = [version for version in before if version not in lineage.versions]
        if gone and self._ordered:
            left = self._left(before, gone)
            if again := [version for version in gone if version in left]:
                self._learn_again(again, waiting)

    def _left(self, chain: Sequence[PolicyRef], looked_at: Sequence[PolicyRef]) -> Sequence[PolicyRef]:
        """Return the end of a chain of versions that is left because of an exclusion.

        It begins with the first version that an order names, or the first of those `looked_at` that learned from an
        excluded turn."""
        with self._store.look() as view:
            heeded = [each.found for each in self._ordered if not view.exclusions.has_failed(each.found.order_id)]
        named = {version for found in heeded for version in found.left}
        for place, version in enumerate(chain):
            if version in named:
                return chain[place:]
            if version in looked_at and self._excluded_among(list(learned_by([version], self._blobs))):
                return chain[place:]
        return []

    def _from_on(self, roots: set[PolicyRef]) -> list[PolicyRef]:
        """Return these versions and all their descendants, in ascending order."""
        found = set(roots)
        known = list[tuple[PolicyRef, PolicyRef | None]]()
        while roots and not (known and known[-1][0] <= min(roots)):
            with self._store.look() as view:
                before = known[-1][0].version if known else None
                page = view.policies.newest(_AT_ONCE, min(roots).policy, before=before)
            if not page:
                break
            known += [(policy.version, policy.parent) for policy, _ in page]
        for version, parent in reversed(known):
            if parent in found:
                found.add(version)
        return sorted(found)

    def _learn_again(self, versions: Sequence[PolicyRef], waiting: Sequence[Reward]) -> None:
        """Put the versions' rewards that are not excluded before those that wait, to be learned again."""
        rewards = list(learned_by(versions, self._blobs))
        excluded = self._excluded_among(rewards)
        kept = {key: reward for reward in rewards if (key := _key(reward)) not in excluded}
        kept |= self._said_since(excluded)
        known = {_key(reward) for reward in (*waiting, *self.again, *self.later)}
        again = sorted((reward for key, reward in kept.items() if key not in known), key=_order)
        self._backlog.pending = {}
        self.again = deque([*again, *waiting, *self.again])
        logger.info("%d rewards are learned again, without %d that are excluded", len(again), len(excluded))

    def _said_since(self, excluded: set[RewardKey]) -> dict[RewardKey, Reward]:
        """Return the newest reward of each of these turns that is later than the excluded one and not excluded itself.

        It may have said the same as the excluded one and been passed over for that."""
        last = dict(sorted(excluded))  # the last excluded revision of each turn
        ids, newest = list(last), dict[InferenceId, Reward]()
        for start in range(0, len(ids), _AT_ONCE):
            with self._store.look() as view:
                said = view.rewards.of_turns(ids[start : start + _AT_ONCE])
            newest |= {reward.inference_id: reward for reward in sorted(said, key=lambda each: each.revision)}
        later = [reward for reward in newest.values() if reward.revision > last[reward.inference_id]]
        still = self._excluded_among(later)
        return {key: reward for reward in later if (key := _key(reward)) not in still}

    def _excluded_among(self, rewards: Sequence[Reward]) -> set[RewardKey]:
        """Return which of the rewards are excluded.

        For turns that are gone from the store, only the findings of earlier orders tell."""
        if not self._ordered:
            return set()
        turns = {turn.inference_id: turn for turn in turns_of(_ids(rewards), self._store)}
        covered = {
            _key(reward)
            for reward in rewards
            if (turn := turns.get(reward.inference_id)) is not None and is_excluded(turn, reward, self._ordered)
        }
        return covered | self._learned.intersection(map(_key, rewards))


def _ids(rewards: Iterable[Reward]) -> set[InferenceId]:
    return {reward.inference_id for reward in rewards}


def _key(reward: Reward) -> RewardKey:
    return reward.inference_id, reward.revision


def _order(reward: Reward) -> tuple[object, ...]:
    return reward.decided_at, reward.inference_id, reward.revision
