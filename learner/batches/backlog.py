"""The backlog: rewarded turns that wait for an update, and those that were applied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from core.events import Completion, Reward
from core.ids import InferenceId, PolicyRef
from core.settings import AdmissionSettings, BatchSettings, LearnerSettings
from core.unstored import NOT_STORED
from learner.batches.mixture import Mixture, parted
from learner.objective.credit import are_sound
from learner.sequences.masks import MasksOfTurns, RationedMasks
from learner.sequences.scored import Applied, ScoredTurn, TurnRecord, heard_in
from learner.sequences.tensors import sampled_places

_IDLE_S = 1.0
_TIMELY_S = 0.2  # while something waits


@dataclass
class Backlog:
    """Rewards that wait, which are part of a version's record, and what was applied, which is of a checkpoint.

    `pending` is in order of arrival, with one revision a turn; `applied` has the last revision of each turn that
    trained on this lineage. `mixture` rules what of it makes an update. `come`: how many came since the last one.
    `keeps_texts` and `keeps_hints`: users' own texts, and their words, are kept, since they teach."""

    mixture: Mixture = field(default_factory=Mixture)
    keeps_texts: bool = False
    keeps_hints: bool = False
    pending: dict[InferenceId, Reward] = field(default_factory=dict)
    applied: dict[InferenceId, Applied] = field(default_factory=dict)
    come: int = 0

    @classmethod
    def of(cls, settings: LearnerSettings) -> "Backlog":
        objective = settings.objective
        return cls(Mixture(settings.mixture), objective.demonstration_weight > 0, objective.hints.weight > 0)

    def add(self, reward: Reward) -> bool:
        """Add a reward, in place of an earlier revision.

        Return False when this revision or a later one is known, or it trains nothing: it has the credits of the one
        that was applied, and says something else in words. What is not taught is not kept: it would stand in
        manifests. What was taught is compared with, whether or not it would be taught now."""
        waiting, applied = self.pending.get(reward.inference_id), self.applied.get(reward.inference_id)
        known = max(waiting.revision if waiting else -1, applied.revision if applied else -1)
        if reward.revision <= known:
            return False
        self.pending.pop(reward.inference_id, None)
        if not (self.keeps_texts or (applied is not None and applied.edits)):
            reward = msgspec.structs.replace(reward, edits=(), edited_by=None)
        if not (self.keeps_hints or (applied is not None and applied.heard)):
            reward = msgspec.structs.replace(reward, hints=())
        trains = reward.value, reward.credits, reward.edits, heard_in(reward)
        if applied is not None and (applied.reward, applied.credits, applied.edits, applied.heard) == trains:
            return False
        self.pending[reward.inference_id] = reward
        self.mixture.note([reward])
        self.come += waiting is None
        return True

    def resume(self, applied: dict[InferenceId, Applied]) -> None:
        """Go on from another version: rewards that it has learned from wait no longer."""
        self.applied = applied
        waiting, self.pending = self.pending, {}
        for reward in waiting.values():
            self.add(reward)
        self.come = 0

    def trim(self, most: int) -> list[tuple[Reward, str]]:
        """Remove what never trains (`mixture`) and what is beyond `most`, each with the reason.

        Of the latter, first go simulated ones where production has any (`mixture`), then the oldest (`backlog_full`),
        whatever they say: who drops by the outcome learns of other users."""
        shut_out = self.mixture.shut_out(self.pending.values())
        gone = [(self.pending.pop(reward.inference_id), "mixture") for reward in shut_out]
        leaving = self._leaving()[: max(0, len(self.pending) - most)]
        return gone + [(self.pending.pop(each), why) for each, why in leaving]

    def _leaving(self) -> list[tuple[InferenceId, str]]:
        """Return all that waits in the order in which it would be dropped, each with the reason."""
        production, simulated = parted(self.pending.values())
        why = "mixture" if production else "backlog_full"
        first = [(reward.inference_id, why) for reward in simulated]
        return first + [(reward.inference_id, "backlog_full") for reward in production]

    def is_ready(self, settings: BatchSettings, now: datetime) -> bool:
        """Return whether there are enough rewards for a batch, or fewer that have waited long enough."""
        return self.ready_in_s(settings, now) <= 0

    def is_full(self, settings: BatchSettings, now: datetime) -> bool:
        """Return whether no further reward is needed for as large a batch as there may be."""
        return len(self.mixture.available(self.pending.values(), settings.turns, now)) >= settings.turns

    def ready_in_s(self, settings: BatchSettings, now: datetime) -> float:
        """Return in how many seconds there is a batch, should no further reward come; infinite where there is none."""
        available = self.mixture.available(self.pending.values(), settings.turns, now)
        if len(available) >= settings.turns:
            return 0.0
        if len(available) < settings.min_turns:
            return math.inf
        awaited = parted(available)[0] or available  # simulated ones may have waited for production to come
        return max(0.0, settings.max_wait_s - (now - awaited[0].decided_at).total_seconds())

    def look_in_s(self, settings: BatchSettings, now: datetime) -> float:
        """Return in how many seconds to look at the time again, and at what is wanted of the learner; never 0."""
        if not self.pending:
            return _IDLE_S
        return min(self.ready_in_s(settings, now), _TIMELY_S) or _TIMELY_S

    def choose(self, settings: BatchSettings, now: datetime) -> list[Reward]:
        """Return the oldest as far as the mixture admits them, each with other waiting turns of its session.

        Under overload it passes over those that would be dropped next: as many as will be beyond `backlog_turns` at
        the next update, if as many come until then as came since the last. Trained, they would be the stalest there
        are, in the place of others that are dropped later."""
        most, room = settings.turns, settings.backlog_turns
        dropped_next = max(0, len(self.pending) - most + min(self.come, room) - room)
        passed_over = {each for each, _ in self._leaving()[:dropped_next]}
        staying = (reward for each, reward in self.pending.items() if each not in passed_over)
        return self.mixture.choose(staying, most, now)

    def remove(self, rewards: list[Reward]) -> None:
        for reward in rewards:
            del self.pending[reward.inference_id]

    def enter(
        self,
        batch: Sequence[ScoredTurn],
        records: Sequence[TurnRecord],
        version: PolicyRef,
        admission: AdmissionSettings,
    ) -> None:
        """Enter what an update applied, and forget what is too old to be corrected."""
        self.come = 0
        for scored, record in zip(batch, records, strict=True):
            if record.dropped is None:
                self.applied[scored.inference_id] = record.applied(scored.reward, version, scored.turn.received_at)
        limits = [*admission.max_outcome_age_s.values(), admission.usual_max_age_s]
        limits += [admission.late_max_age_s] if admission.late == "kto" else []
        newest = max(scored.reward.decided_at for scored in batch)
        self._forget_before(newest - timedelta(seconds=max(limits)))

    def _forget_before(self, oldest: datetime) -> None:
        for inference_id in [key for key, applied in self.applied.items() if applied.received_at < oldest]:
            del self.applied[inference_id]

    def scored(self, reward: Reward, turn: Completion) -> ScoredTurn:
        return ScoredTurn(turn, reward, self.applied.get(reward.inference_id))


@dataclass(frozen=True)
class Bounds:
    """The bounds within which a turn fits this model. None: not known."""

    tokenizer_digest: str | None = None
    context_length: int | None = None
    vocabulary: int | None = None
    masks: MasksOfTurns | RationedMasks | None = None

    def of_a_correction(self) -> "Bounds":
        """Return them without the ration of time: else what it taught might stay, since nobody compiles its grammar."""
        return replace(self, masks=self.masks.of_all) if isinstance(self.masks, RationedMasks) else self


def refusal(turn: Completion, reward: Reward, bounds: Bounds = Bounds()) -> str | None:
    """Return why a turn with this reward never trains; None when it may."""
    if turn.unstored is not None:
        return NOT_STORED
    if not (turn.learn or reward.void):  # what a turn taught before its user withdrew is taken back
        return "no_consent"
    if turn.arm == "holdback":
        return "held_back"  # it is for a comparison, and the policy has gone far from what sampled it
    if not turn.trainable:
        return "untrainable"
    if not sampled_places(turn):
        return "empty"
    if len(turn.logprobs) != len(turn.token_ids):
        return "incomplete_capture"
    if not all(map(math.isfinite, (reward.value, *turn.logprobs))):
        return "not_finite"
    if bounds.tokenizer_digest not in (None, turn.tokenizer_digest):
        return "other_tokenizer"
    if bounds.context_length is not None and len(turn.prompt_token_ids) + len(turn.token_ids) > bounds.context_length:
        return "over_context"
    if bounds.vocabulary is not None and not _are_words(turn, bounds.vocabulary):
        return "unknown_tokens"
    if not are_sound(reward.credits, turn):
        return "bad_credits"
    return None if bounds.masks is None else bounds.masks.refusal(turn)


def _are_words(turn: Completion, vocabulary: int) -> bool:
    ids = turn.prompt_token_ids + turn.token_ids
    return min(ids) >= 0 and max(ids) < vocabulary
