"""Turns with their rewards: what the learner trains on."""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from core.events import Completion, Credit, Reward, TextEdit
from core.ids import InferenceId, PolicyRef


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The last revision of a turn that trained on this lineage. `follow`: what later turns added to the reward.

    `edits` is the user's text that was taught, with the weight `taught`; there is none where that is 0."""

    revision: int
    reward: float
    follow: float = 0.0
    credits: tuple[Credit, ...] = ()
    edits: tuple[TextEdit, ...] = ()
    taught: float = 0.0
    scale: float  # the advantage was (reward - baseline) / scale
    version: PolicyRef
    received_at: datetime  # of the turn: past the longest age limit no correction can come

    @property
    def worth(self) -> float:
        return self.reward + self.follow


@dataclass(frozen=True)
class ScoredTurn:
    """A turn with its reward.

    When an earlier revision of the reward has trained already, `applied` is set and this is a correction of it.
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
    def is_correction(self) -> bool:
        return self.applied is not None


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of what an update did with one turn, for the manifest.

    The turn's gradient had the advantage `credit` (mean over its tokens): (reward + follow - baseline) / scale, or for
    a correction the difference to what was applied / the recorded scale. `dropped` names the reason when it trained
    only the baseline. A turn is `late` when it trained without importance weights (`learner.objective.kto`), because
    its outcome came too late for them or by config: it has no advantage, and its credit is 0. `taught` is the weight
    with which the user's text stands from then on (`learner.objective.demonstrations`); 0: none does."""

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
    taught: float = 0.0

    def applied(self, reward: Reward, version: PolicyRef, received_at: datetime) -> Applied:
        """Return what trained: this record's turn, which an update with the given reward did not drop."""
        return Applied(
            revision=self.revision,
            reward=self.reward,
            follow=self.follow,
            credits=reward.credits,
            edits=reward.edits if self.taught else (),
            taught=self.taught,
            scale=self.scale,
            version=version,
            received_at=received_at,
        )
