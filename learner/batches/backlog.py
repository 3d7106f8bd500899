"""The backlog: rewarded turns that wait for an update, and those that were applied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from core.events import Completion, Reward
from core.ids import InferenceId, PolicyRef
from core.settings import AdmissionSettings, BatchSettings
from core.unstored import NOT_STORED
from learner.batches.mixture import Mixture, parted
from learner.objective.advantages.base import MIN_SCALE
from learner.objective.credit import are_sound
from learner.sequences.masks import MasksOfTurns
from learner.sequences.scored import Applied, ScoredTurn, TurnRecord
from learner.sequences.tensors import sampled_places

_LEAVING: Final = ("uninformative", "mixture", "backlog_full")
"""Why a reward leaves a full backlog; those of the first reason leave first."""


@dataclass
class Backlog:
    """Rewards that wait, which are part of a version's record, and what was applied, which is of a checkpoint.

    `pending` is in order of arrival, with one revision a turn; `applied` has the last revision of each turn that
    trained on this lineage. `mixture` rules what of it makes an update."""

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
        shut_out = self.mixture.shut_out(self.pending.values())
        gone = [(self.pending.pop(reward.inference_id), "mixture") for reward in shut_out]
        excess = len(self.pending) - most
        if excess <= 0:
            return gone
        production, simulated = parted(self.pending.values())
        reasons = dict.fromkeys(self.pending, "backlog_full")
        if production:
            reasons |= {reward.inference_id: "mixture" for reward in simulated}
        reasons |= dict.fromkeys(self._uninformative(), "uninformative")
        chosen = sorted(self.pending, key=lambda each: _LEAVING.index(reasons[each]))[:excess]  # of each the oldest
        return gone + [(self.pending.pop(each), reasons[each]) for each in chosen]

    def _uninformative(self) -> set[InferenceId]:
        """Return the turns whose advantage would be about 0, since their reward is about the mean of their stratum.

        A turn that is alone in its stratum, or corrects what was learned, is not among them."""
        strata: dict[tuple[str, str, str], list[Reward]] = {}
        for reward in (each for each in self.pending.values() if not each.void):
            strata.setdefault((reward.namespace, reward.workload, reward.environment), []).append(reward)
        dull: set[InferenceId] = set()
        for rewards in (each for each in strata.values() if len(each) > 1):
            mean = math.fsum(reward.value for reward in rewards) / len(rewards)
            dull |= {reward.inference_id for reward in rewards if abs(reward.value - mean) < MIN_SCALE}
        return dull - self.applied.keys()

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

    def enter(
        self,
        batch: Sequence[ScoredTurn],
        records: Sequence[TurnRecord],
        version: PolicyRef,
        admission: AdmissionSettings,
    ) -> None:
        """Enter what an update applied, and forget what is too old to be corrected."""
        for scored, record in zip(batch, records, strict=True):
            if record.dropped is None:
                self.applied[scored.inference_id] = Applied(
                    revision=record.revision,
                    reward=record.reward,
                    follow=record.follow,
                    credits=scored.reward.credits,
                    scale=record.scale,
                    version=version,
                    received_at=scored.turn.received_at,
                )
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
    return None if bounds.masks is None else bounds.masks.refusal(turn)


def _are_words(turn: Completion, vocabulary: int) -> bool:
    ids = turn.prompt_token_ids + turn.token_ids
    return min(ids) >= 0 and max(ids) < vocabulary
