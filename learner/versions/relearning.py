"""What operators excluded from learning, and what is learned again once a lineage goes on without it.

The learner goes back to before the first use of what was excluded as it goes back for any other reason: releases lead
it. What else the abandoned versions learned is then learned again, in the order in which it was decided, and before
all that came after it."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from core.events import Reward
from core.ids import InferenceId, PolicyRef
from core.operations.exclusions import EXCLUDED, Excluded, is_excluded
from core.ports import Blobs, Store
from core.settings import BatchSettings
from core.store.work import View
from learner.batches.backlog import Backlog
from learner.sequences.scored import ScoredTurn
from learner.versions.journal import Entry
from learner.versions.lineage import Lineage
from learner.versions.provenance import learned_by, turns_of

logger = logging.getLogger(__name__)
Drop = Callable[[InferenceId, str], None]


class Relearning:
    """Admits rewards to the backlog: first what is to be learned again, then what came meanwhile, then what comes.

    Only as much waits in the backlog as the next batch takes, so that batches come to be what they would have been."""

    def __init__(self, store: Store, blobs: Blobs, backlog: Backlog, drop: Drop) -> None:
        self._store, self._blobs = store, blobs
        self._backlog, self._drop = backlog, drop
        self._ordered: list[Excluded] = []
        self.heeded = 0
        """The newest exclusion for which the lineage was looked through."""
        self.again = deque[Reward]()
        self.later = deque[Reward]()
        """What came while others are learned again. Like the backlog, it is bounded."""

    def stand_where(self, entry: Entry) -> None:
        self.again, self.later, self.heeded = deque(entry.again), deque(entry.later), entry.heeded

    # ------------------------------------------------------------------------------------------ admission

    def admit(self, reward: Reward, most: int) -> None:
        """Let a reward wait: behind what is to be learned again, if anything is; of these the oldest make room."""
        if not (self.again or self.later):
            self._add(reward, most)
            return
        self.later.append(reward)
        if len(self.later) > most:
            self._drop(self.later.popleft().inference_id, "backlog_full")

    def feed(self, settings: BatchSettings, now: datetime) -> None:
        """Let as much of what waits here come into the backlog as the next batch takes."""
        while (waiting := self.again or self.later) and not self._backlog.is_full(settings, now):
            self._add(waiting.popleft(), settings.backlog_turns)

    def _add(self, reward: Reward, most: int) -> None:
        if self._backlog.add(reward):
            for passed_over, why in self._backlog.trim(most):
                self._drop(passed_over.inference_id, why)

    def refusal(self, scored: ScoredTurn) -> str | None:
        """Return why the turn may not train, whatever is said of it now."""
        return EXCLUDED if is_excluded(scored.turn, scored.reward, self._ordered) else None

    # ------------------------------------------------------------------------------------------ going back

    def look_again(self) -> None:
        """Look at what was excluded meanwhile."""
        with self._store.look() as view:
            self._ordered += view.exclusions.after(self.newest)

    @property
    def newest(self) -> int:
        """The number of the newest exclusion that is known here; 0: of none."""
        return self._ordered[-1].exclusion_id if self._ordered else 0

    def is_overtaken(self, view: View) -> bool:
        """Return whether something was excluded that is not known here."""
        return bool(view.exclusions.after(self.newest))

    def misled(self, rewards: Sequence[Reward]) -> str | None:
        """Look at what is excluded by now; return why an update by these rewards serves nobody, else None."""
        self.look_again()
        excluded = self._excluded_among(rewards)
        return f"{len(excluded)} of its turns were excluded while it was made" if excluded else None

    def must_go_back_to(self, lineage: Lineage) -> PolicyRef | None:
        """Look at what is excluded by now; return the version before the first that learned from it and serves nobody.

        From versions that serve, releases lead back."""
        self.look_again()
        if self.newest == self.heeded or lineage.live not in lineage.versions:
            return None
        self.heeded = self.newest
        for version in lineage.ahead():
            if self._excluded_among(list(learned_by([version], self._blobs))):
                return lineage.versions[lineage.versions.index(version) - 1]
        return None

    def abandon(self, versions: Sequence[PolicyRef]) -> None:
        """Learn again what abandoned versions had learned of others, if they had learned of anything excluded.

        Versions that had not were abandoned for a reason of their own: nobody wants them again."""
        self.look_again()
        if not (versions and self._ordered):
            return
        rewards = list(learned_by(versions, self._blobs))
        excluded = self._excluded_among(rewards)
        if not excluded:
            return
        kept = {key: reward for reward in rewards if (key := _key(reward)) not in excluded}
        waited, self._backlog.pending = self._backlog.pending, {}
        self.again = deque([*sorted(kept.values(), key=_order), *waited.values(), *self.again])
        logger.info("%d rewards are learned again, without %d that are excluded", len(kept), len(excluded))

    def _excluded_among(self, rewards: Sequence[Reward]) -> set[tuple[InferenceId, int]]:
        """Return which of the rewards are excluded, as far as the store still has their turns."""
        if not self._ordered:
            return set()
        turns = {turn.inference_id: turn for turn in turns_of(_ids(rewards), self._store)}
        return {
            _key(reward)
            for reward in rewards
            if (turn := turns.get(reward.inference_id)) is not None and is_excluded(turn, reward, self._ordered)
        }


def _ids(rewards: Iterable[Reward]) -> set[InferenceId]:
    return {reward.inference_id for reward in rewards}


def _key(reward: Reward) -> tuple[InferenceId, int]:
    return reward.inference_id, reward.revision


def _order(reward: Reward) -> tuple[object, ...]:
    return reward.decided_at, reward.inference_id, reward.revision
