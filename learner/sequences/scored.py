"""Turns with their rewards: what the learner trains on."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from core.events import Completion, Credit, Reward, TextEdit
from core.ids import InferenceId, OutcomeId, PolicyRef

TOO_OLD: Final = "too_old"


class Taught(msgspec.Struct, frozen=True, kw_only=True):
    """The demonstration of a turn that trained last on this lineage, with the `weight` of each of its tokens."""

    edits: tuple[TextEdit, ...]
    weight: float


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a revision said whose reward, or text, an update left out: a later one that says the same is no news."""

    reward: float
    credits: tuple[Credit, ...] = ()
    edits: tuple[TextEdit, ...] = ()


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The last revision of a turn that trained on this lineage. `follow`: what later turns added to the reward.

    `taught`: its demonstration, which may be of an earlier revision, or of a later one whose reward trained nothing.
    `is_reward`: False where only the demonstration trained, or nothing yet. `left_out`: what an update had of the turn
    last, if it trained not all of it."""

    revision: int
    reward: float
    follow: float = 0.0
    credits: tuple[Credit, ...] = ()
    scale: float  # the advantage was (reward - baseline) / scale
    version: PolicyRef
    received_at: datetime  # of the turn: past the longest age limit no correction can come
    hints: tuple[OutcomeId, ...] = ()  # whose words this revision and those before it had
    is_reward: bool = True
    taught: Taught | None = None
    left_out: LeftOut | None = None

    @property
    def has_trained(self) -> bool:
        return self.is_reward or self.taught is not None

    @property
    def worth(self) -> float:
        return self.reward + self.follow


@dataclass(frozen=True)
class ScoredTurn:
    """A turn with its reward.

    When an earlier revision has trained already, `applied` is set, and `corrected` where its reward has: then this is a
    correction of it.
    `follow`: what the turns that continue this one add to its reward (`learner.objective.credit`)."""

    turn: Completion
    reward: Reward
    applied: Applied | None = None
    follow: float = 0.0

    @property
    def inference_id(self) -> InferenceId:
        return self.turn.inference_id

    @property
    def worth(self) -> float:
        return self.reward.value + self.follow

    @property
    def mean_worth(self) -> float:
        """The mean of what its tokens are rewarded with: what one baseline for all of them is held against."""
        credits = self.reward.credits
        if not credits or not self.turn.token_ids:
            return self.worth
        moved = sum((credit.end - credit.start) * (credit.value - self.reward.value) for credit in credits)
        return self.worth + moved / len(self.turn.token_ids)

    @property
    def age_s(self) -> float:
        """The time from the turn to the outcome that decided its reward."""
        return ((self.reward.last_outcome_at or self.reward.decided_at) - self.turn.received_at).total_seconds()

    @property
    def corrected(self) -> Applied | None:
        return self.applied if self.applied is not None and self.applied.is_reward else None

    @property
    def is_correction(self) -> bool:
        return self.corrected is not None

    @property
    def taught(self) -> Taught | None:
        return None if self.applied is None else self.applied.taught


class DemonstrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of what an update did with the demonstration of a turn that is new, was revised, or was withdrawn.

    `tokens` of it trained, each with `weight`; `taken_back`: tokens of the one that trained before, whose training was
    undone with the weight that it had. `dropped` names the reason when the new one did not train."""

    tokens: int = 0
    weight: float = 0.0
    taken_back: int = 0
    dropped: str | None = None


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of what an update did with one turn, for the manifest.

    The turn's gradient had the advantage `credit` (mean over its tokens): (reward + follow - baseline) / scale, or for
    a correction the difference to what was applied / the recorded scale. `dropped` names the reason when it trained
    only the baseline. A turn is `late` when it trained otherwise than by the usual importance weights, because its
    outcome came too late for them or by config: by asymmetric clipping, or by KTO, where it has no advantage, and its
    credit is 0. `words`: what became of what was said of it (`learner.objective.words`); None: nothing new was, or
    words do not train."""

    inference_id: InferenceId
    revision: int
    reward: float
    follow: float = 0.0
    applied_revision: int | None
    baseline: float
    scale: float
    credit: float
    divergence: float
    dropped: str | None = None
    late: bool = False
    words: str | None = None
    demonstration: DemonstrationRecord | None = None

    @property
    def changed_demonstration(self) -> DemonstrationRecord | None:
        """The record of the turn's demonstration if the weights learned or lost any by it."""
        told = self.demonstration
        return told if told is not None and (told.tokens or told.taken_back) else None


def applied_after(
    before: Applied | None, record: TurnRecord, reward: Reward, version: PolicyRef, received_at: datetime
) -> Applied:
    """Return what is known of a turn after an update; `received_at`: the turn."""
    taught, told = before.taught if before is not None else None, record.changed_demonstration
    if told is not None:
        taught = Taught(edits=reward.edits, weight=told.weight) if told.tokens else None
    left_out = _left_out(record, reward, taught)
    if record.dropped is None:
        return Applied(
            revision=record.revision,
            reward=record.reward,
            follow=record.follow,
            credits=reward.credits,
            scale=record.scale,
            version=version,
            received_at=received_at,
            hints=known_hints(before, reward),
            taught=taught,
            left_out=left_out,
        )
    if before is not None and (before.is_reward or told is None):
        return msgspec.structs.replace(before, taught=taught, left_out=left_out)
    return Applied(
        revision=record.revision,
        reward=0.0,
        scale=1.0,
        version=version,
        received_at=received_at,
        is_reward=False,
        taught=taught,
        left_out=left_out,
    )


def _left_out(record: TurnRecord, reward: Reward, taught: Taught | None) -> LeftOut | None:
    told = record.demonstration
    if record.dropped is None and (told is None or told.dropped is None):
        return None
    edits = reward.edits if told is not None else taught.edits if taught is not None else ()
    return LeftOut(reward=record.reward, credits=reward.credits, edits=edits)


def known_hints(before: Applied | None, reward: Reward) -> tuple[OutcomeId, ...]:
    """Return the outcomes whose words a turn's applied revisions had."""
    return tuple(dict.fromkeys([*(before.hints if before else ()), *(hint.outcome_id for hint in reward.hints)]))
