"""The admission of turns beside what operators excluded, and what is learned again once a lineage goes on without it.

The learner goes back to before the first use of what was excluded as it goes back for any other reason: releases lead
it. What else the abandoned versions learned is then learned again, in the order in which it was decided."""

import logging
from collections import deque
from collections.abc import Iterable, Sequence

from core.events import Completion, Reward
from core.ids import InferenceId, PolicyRef
from core.operations.exclusions import Excluded, is_excluded
from core.ports import Blobs, Store
from learner.batches.backlog import Backlog
from learner.sequences.scored import ScoredTurn
from learner.versions.lineage import Lineage
from learner.versions.provenance import learned_by

EXCLUDED = "excluded"
_AT_ONCE = 500  # turns of one query
logger = logging.getLogger(__name__)


class ExclusionAdmission:
    """Says which turns are excluded. `again`: what waits to be learned again, before anything that comes."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        self._store, self._blobs = store, blobs
        self._ordered: list[Excluded] = []
        self._looked_for = 0  # of these, among the versions that serve nobody yet
        self.again: deque[Reward] = deque()

    def look_again(self) -> None:
        with self._store.look() as view:
            self._ordered = view.exclusions.all()

    def must_go_back_to(self, lineage: Lineage) -> PolicyRef | None:
        """Look at what is excluded by now; return the version before the first that learned from it and serves nobody.

        From versions that serve, releases lead back."""
        self.look_again()
        if len(self._ordered) == self._looked_for or lineage.live not in lineage.versions:
            return None
        self._looked_for = len(self._ordered)
        for version in lineage.ahead():
            if self._excluded_of({reward.inference_id for reward in learned_by([version], self._blobs)}):
                return lineage.versions[lineage.versions.index(version) - 1]
        return None

    def refusal(self, scored: ScoredTurn) -> str | None:
        """Return why the turn may not train. What it taught on this lineage can be taken back, and nothing more."""
        if scored.applied is not None and scored.reward.void:
            return None
        return EXCLUDED if is_excluded(scored.turn, self._ordered) else None

    def feed(self, backlog: Backlog, most: int) -> None:
        """Let what is to be learned again wait before anything that came: as much of it as the next batch takes."""
        came, backlog.pending = backlog.pending, {}
        self._fed = {name for name in self._fed if name in came}
        for name in self._fed:
            backlog.pending[name] = came.pop(name)
        while self.again and len(backlog.pending) < most:
            backlog.add(self.again.popleft())
        self._fed = set(backlog.pending)
        backlog.pending |= came

    def abandon(self, versions: Sequence[PolicyRef], backlog: Backlog) -> None:
        """Learn again what abandoned versions had learned of others, if they had learned of anything excluded.

        Versions that had not were abandoned for a reason of their own: nobody wants them again."""
        self.look_again()
        if not (versions and self._ordered):
            return
        rewards = list(learned_by(versions, self._blobs))
        excluded = self._excluded_of({reward.inference_id for reward in rewards})
        if not excluded:
            return
        kept = {_key(reward): reward for reward in [*rewards, *self.again] if reward.inference_id not in excluded}
        waited, backlog.pending = backlog.pending, {}  # what came after it is learned after it
        self.again = deque([*sorted(kept.values(), key=_order), *waited.values()])
        logger.info("%d turns are learned again, without %d that are excluded", len(self.again), len(excluded))

    def _excluded_of(self, ids: Iterable[InferenceId]) -> set[InferenceId]:
        return {turn.inference_id for turn in turns_of(ids, self._store) if is_excluded(turn, self._ordered)}


def turns_of(ids: Iterable[InferenceId], store: Store) -> Iterable[Completion]:
    """Yield those of the given turns that are in the store."""
    wanted = sorted(ids)
    for start in range(0, len(wanted), _AT_ONCE):
        with store.look() as view:
            found = view.turns.get_many(wanted[start : start + _AT_ONCE])
        yield from found.values()


def _key(reward: Reward) -> tuple[InferenceId, int]:
    return reward.inference_id, reward.revision


def _order(reward: Reward) -> tuple[object, ...]:
    return reward.decided_at, reward.inference_id, reward.revision
