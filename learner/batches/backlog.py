"""The backlog: rewarded turns that wait for an update, and those that were applied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from core.events import Completion, Reward
from core.ids import InferenceId, PolicyRef
from core.records.text_edits import are_sound as edits_are_sound
from core.settings import BatchSettings, LearnerSettings
from core.unstored import NOT_STORED
from learner.batches.mixture import Mixture, parted
from learner.objective.advantages.base import MIN_SCALE
from learner.objective.credit import are_sound
from learner.sequences.hinted import are_hints_sound, do_train, new_hints
from learner.sequences.masks import MasksOfTurns
from learner.sequences.scored import Applied, ScoredTurn, TurnRecord, applied_after
from learner.sequences.tensors import sampled_places

_TAKEN_BACK_FOR: Final = timedelta(days=90)
"""Age of a turn up to which a text that its user put there is taken back if that is withdrawn."""
_LEAVING: Final = ("uninformative", "mixture", "backlog_full")


def _reason(is_dull: bool, is_beyond: bool) -> str:
    return "uninformative" if is_dull else "mixture" if is_beyond else "backlog_full"


@dataclass
class Backlog:
    """Rewards that wait, which are part of a version's record, and what was applied, which is of a checkpoint.

    `pending` is in order of arrival, with one revision a turn; `applied` has what each turn that an update of this
    lineage had was trained with. `mixture` rules what of it makes an update."""

    mixture: Mixture = field(default_factory=Mixture)
    pending: dict[InferenceId, Reward] = field(default_factory=dict)
    applied: dict[InferenceId, Applied] = field(default_factory=dict)

    def add(self, reward: Reward) -> bool:
        """Add a reward, in place of an earlier revision; return False when this revision or a later one is known."""
        waiting, applied = self.pending.get(reward.inference_id), self.applied.get(reward.inference_id)
        known = max(waiting.revision if waiting else -1, applied.revision if applied else -1)
        if reward.revision <= known:
            return False
        self.pending.pop(reward.inference_id, None)
        self.pending[reward.inference_id] = reward
        self.mixture.note([reward])
        return True

    def resume(self, applied: dict[InferenceId, Applied]) -> None:
        """Go on from another version: rewards that it has learned from wait no longer."""
        self.applied = applied
        waiting, self.pending = self.pending, {}
        for reward in waiting.values():
            self.add(reward)

    def trim(self, most: int) -> list[tuple[Reward, str]]:
        """Remove what never trains (`mixture`) and what is beyond `most`, each with the reason.

        Of the latter, first go the rewards that would teach next to nothing (`uninformative`), then simulated ones
        where production has any (`mixture`), then the oldest (`backlog_full`)."""
        never = [
            (self.pending.pop(reward.inference_id), "mixture")
            for reward in self.mixture.shut_out(self.pending.values())
        ]
        excess = len(self.pending) - most
        if excess <= 0:
            return never
        dull = self._uninformative()
        production, simulated = parted(self.pending.values())
        beyond = {reward.inference_id for reward in simulated} if production else set()
        reasons = {each: _reason(each in dull, each in beyond) for each in self.pending}
        chosen = sorted(self.pending, key=lambda each: _LEAVING.index(reasons[each]))[:excess]  # of each the oldest
        return never + [(self.pending.pop(each), reasons[each]) for each in chosen]

    def _uninformative(self) -> set[InferenceId]:
        """Return the turns whose advantage would be about 0, since their reward is about the mean of their stratum.

        A turn that is alone in its stratum, corrects what was learned, or says more than its reward's number is not
        among them."""
        strata: dict[tuple[str, str, str], list[Reward]] = {}
        for reward in self.pending.values():
            strata.setdefault((reward.namespace, reward.workload, reward.environment), []).append(reward)
        dull: set[InferenceId] = set()
        for rewards in (each for each in strata.values() if len(each) > 1):
            mean = math.fsum(reward.value for reward in rewards) / len(rewards)
            near = (reward for reward in rewards if abs(reward.value - mean) < MIN_SCALE)
            dull |= {each.inference_id for each in near if not (each.credits or each.edits or each.hints)}
        return {each for each in dull if not self.has_trained(each)}

    def has_trained(self, inference_id: InferenceId) -> bool:
        """Return whether anything of a turn trained on this lineage."""
        applied = self.applied.get(inference_id)
        return applied is not None and applied.has_trained

    def is_ready(self, settings: BatchSettings, now: datetime) -> bool:
        """Return whether there are enough rewards for a batch, or fewer that have waited long enough."""
        available = self.mixture.available(self.pending.values(), settings.turns, now)
        if len(available) >= settings.turns:
            return True
        if len(available) < settings.min_turns:
            return False
        awaited = parted(available)[0] or available  # simulated ones may have waited for production to come
        return (now - awaited[0].decided_at).total_seconds() >= settings.max_wait_s

    def choose(self, most: int, now: datetime) -> list[Reward]:
        """Return the oldest as far as the mixture admits them, each with other waiting turns of its session."""
        return self.mixture.choose(self.pending.values(), most, now)

    def remove(self, rewards: list[Reward]) -> None:
        for reward in rewards:
            del self.pending[reward.inference_id]

    def take_off(self, batch: Sequence[ScoredTurn]) -> None:
        """Remove what an update used, and earlier revisions of it; a later one waits on."""
        for scored in batch:
            waiting = self.pending.get(scored.inference_id)
            if waiting is not None and waiting.revision <= scored.reward.revision:
                del self.pending[scored.inference_id]

    def enter(
        self,
        batch: Sequence[ScoredTurn],
        records: Sequence[TurnRecord],
        version: PolicyRef,
        settings: LearnerSettings,
    ) -> None:
        """Enter what an update applied, and forget what is too old to be corrected."""
        for scored, record in zip(batch, records, strict=True):
            before, of = self.applied.get(scored.inference_id), scored.turn
            self.applied[scored.inference_id] = applied_after(before, record, scored.reward, version, of.received_at)
        admission = settings.admission
        limits = [settings.demonstrations.max_age_s, *admission.max_outcome_age_s.values(), admission.usual_max_age_s]
        limits += [admission.late_max_age_s] if admission.late != "baseline" else []
        newest = max(scored.reward.decided_at for scored in batch)
        self._forget_before(newest - timedelta(seconds=max(limits)), newest - _TAKEN_BACK_FOR)

    def _forget_before(self, oldest: datetime, oldest_text: datetime) -> None:
        oldest_text = min(oldest, oldest_text)
        for inference_id, applied in list(self.applied.items()):
            if applied.received_at < (oldest if applied.taught is None else oldest_text):
                del self.applied[inference_id]

    def scored(self, reward: Reward, turn: Completion) -> ScoredTurn:
        return ScoredTurn(turn, reward, self.applied.get(reward.inference_id))


@dataclass(frozen=True)
class Bounds:
    """The bounds within which a turn fits this model. None: not known."""

    tokenizer_digest: str | None = None
    context_length: int | None = None
    vocabulary: int | None = None
    masks: MasksOfTurns | None = None


def refusal(turn: Completion, reward: Reward, bounds: Bounds = Bounds()) -> str | None:
    """Return why a turn with this reward never trains; None when it may."""
    if turn.unstored is not None:
        return NOT_STORED
    if not turn.learn:
        return "no_consent"
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
    if not are_hints_sound(reward.hints, turn):
        return "bad_hints"
    if not edits_are_sound(reward.edits, len(turn.token_ids), bounds.vocabulary):
        return "bad_edits"
    return None if bounds.masks is None else bounds.masks.refusal(turn)


def adds_nothing(scored: ScoredTurn, settings: LearnerSettings) -> bool:
    """Return whether a revision says what an update has had already, or what does not train with these settings.

    Without these a comment on a turn would take a turn's place in an update, and teach nothing; one on a turn that was
    left out would teach its reward to the baseline once more."""
    before, reward = scored.applied, scored.reward
    if before is None or not (before.is_reward or before.left_out):
        return False
    said, taught = before.left_out or before, scored.taught.edits if scored.taught else ()
    if (said.reward, said.credits) != (reward.value, reward.credits):
        return False
    edits = taught if before.left_out is None else before.left_out.edits
    if reward.edits != edits and (settings.demonstrations.weight or taught):
        return False
    return not (new_hints(scored) and do_train(settings.words, scored.turn.namespace))


def _are_words(turn: Completion, vocabulary: int) -> bool:
    ids = turn.prompt_token_ids + turn.token_ids
    return min(ids) >= 0 and max(ids) < vocabulary
