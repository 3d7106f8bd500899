"""Turns that wait for an update: admitted as they are rewarded, refused where they never train, made into batches."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from core.events import Completion, Reward
from core.ids import InferenceId
from core.ports import Clock, EventLog, Store
from core.records.handling import Culprits, attempt, take_all
from core.settings import LearnerSettings
from learner.batches.backlog import Backlog, Bounds, adds_nothing, refusal
from learner.poison_rewards import put_reward, try_to_pack
from learner.sequences.hinted import heeded
from learner.sequences.kept_out import EVAL_SOLUTION, KeptOut
from learner.sequences.masks import MasksOfTurns
from learner.sequences.scored import ScoredTurn

_OF_TEXTS: Final = (EVAL_SOLUTION, "bad_edits", "bad_hints")
"""Reasons for which a turn may not train that may be those of its reward's texts."""
_TURN_WAIT_S = 60.0  # the writer is behind by seconds at most


class WaitingTurns:
    """The way of a turn from its reward into a batch, or out of the backlog."""

    def __init__(
        self,
        backlog: Backlog,
        bounds: Bounds,
        kept_out: KeptOut,
        masks: MasksOfTurns,
        is_excluded: Callable[[Completion, Reward], bool],
        log: EventLog,
        store: Store,
        culprits: Culprits,
        settings: LearnerSettings,
        clock: Clock,
        record_attempts: int,
    ) -> None:
        """Rule a backlog. `is_excluded`: whether an order keeps the turn, with this reward, from training."""
        self._backlog, self._bounds, self._kept_out, self._masks = backlog, bounds, kept_out, masks
        self._is_excluded = is_excluded
        self._log, self._store, self._culprits = log, store, culprits
        self._settings, self._clock, self._record_attempts = settings, clock, record_attempts
        self.drops: dict[str, list[InferenceId]] = {}
        """Turns that left since the last update, by reason."""
        self.left_out = Counter[str]()
        """Turns that left without any update since this learner began, by reason."""
        self.lacks_turns = False
        """True if the store had not all turns of the next batch when that was last looked up."""
        self.failed: set[tuple[InferenceId, int]] = set()
        """Revisions of turns with which updates failed each time."""

    @property
    def is_due(self) -> bool:
        """Whether rewards wait for a batch; whether the store has their turns shows when one is made."""
        return self._backlog.is_ready(self._settings.batch, self._clock.now())

    def admit(self, reward: Reward) -> None:
        if self._backlog.add(heeded(reward, self._settings.words)):
            for passed_over, why in self._backlog.trim(self._settings.batch.backlog_turns):
                self.drop(passed_over.inference_id, why)

    def due_batch(self) -> list[ScoredTurn]:
        """Return a batch; [] when none is due, or while the store still lacks the turns."""
        while self.is_due:
            chosen = self._backlog.choose(self._settings.batch.turns, self._clock.now())
            found: dict[InferenceId, Completion] = {}
            take_all(chosen, partial(self._find, found), self._set_aside, self._record_attempts)
            if any(reward.inference_id not in self._backlog.pending for reward in chosen):
                continue  # set aside
            self.lacks_turns = len(found) < len(chosen)
            if self.lacks_turns and not self._give_up([r for r in chosen if r.inference_id not in found]):
                return []
            if not self.lacks_turns and not self._refuse(chosen, found):
                waiting = (self._backlog.pending[reward.inference_id] for reward in chosen)
                return [self._backlog.scored(reward, found[reward.inference_id]) for reward in waiting]
        return []

    def drop(self, inference_id: InferenceId, why: str) -> None:
        self.left_out[why] += 1
        self.drops.setdefault(why, []).append(inference_id)

    def take_drops(self) -> dict[str, tuple[InferenceId, ...]]:
        """Return the drops since this was last asked, for a manifest."""
        taken, self.drops = self.drops, {}
        return {why: tuple(ids) for why, ids in taken.items()}

    def _find(self, found: dict[InferenceId, Completion], chosen: Sequence[Reward]) -> None:
        with self._store.look() as view:
            found |= view.turns.get_many([reward.inference_id for reward in chosen])

    def _give_up(self, missing: Sequence[Reward]) -> bool:
        """Drop rewards whose turns never came; return whether there were any. The writer is only behind for a while."""
        lost = [r for r in missing if (self._clock.now() - r.decided_at).total_seconds() > _TURN_WAIT_S]
        self._backlog.remove(lost)
        for reward in lost:
            self.drop(reward.inference_id, "turn_missing")
        return bool(lost)

    def _refuse(self, chosen: Sequence[Reward], found: dict[InferenceId, Completion]) -> bool:
        """Remove what never trains; return whether there was any."""
        refused = False
        for reward in chosen:
            leave_out = partial(self._leave_out, reward, found[reward.inference_id])
            failure = attempt(leave_out, self._record_attempts)
            if failure is not None:
                self._set_aside(reward, failure)
            refused = refused or reward.inference_id not in self._backlog.pending
        return refused

    def _leave_out(self, reward: Reward, turn: Completion) -> None:
        """Remove the turn unless it may train. Raises what a batch with it would make an update raise."""
        why = self._refusal(turn, reward)
        if why in _OF_TEXTS and self._backlog.has_trained(reward.inference_id):
            reward = self._backlog.pending[reward.inference_id] = replace(reward, edits=(), hints=())
            why = self._refusal(turn, reward)  # what trained before them is taken back
        if reward.void and not self._backlog.has_trained(reward.inference_id):
            why = "void"  # what has trained is taken back instead
        scored = self._backlog.scored(reward, turn)
        if why is None and adds_nothing(scored, self._settings):
            why = "nothing_new"
        if (reward.inference_id, reward.revision) in self.failed:
            why = "failed"
        if self._is_excluded(turn, reward):
            why = "excluded"
        if why is None:
            try_to_pack(scored, self._masks)
        else:
            self._backlog.remove([reward])
            self.drop(reward.inference_id, why)

    def _refusal(self, turn: Completion, reward: Reward) -> str | None:
        why = refusal(turn, reward, self._bounds)
        return why or self._kept_out.refusal(turn, reward.edits, reward.hints)

    def _set_aside(self, reward: Reward, failure: Exception) -> None:
        put_reward(self._culprits, self._log, reward, failure)
        self._backlog.remove([reward])
        self.drop(reward.inference_id, "failed")
