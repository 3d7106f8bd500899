"""Which logged turns may be learned from, for midtraining and exports, which have no running learner."""

from collections.abc import Sequence

from core.events import Completion, Reward
from core.operations.exclusions import EXCLUDED, Excluded, is_excluded
from learner.batches.backlog import Bounds, refusal
from learner.sequences.resemblance import KeptOut


class Teachable:
    """Says of a turn with its latest reward why it teaches nothing. `excluded`: what operators excluded."""

    def __init__(self, bounds: Bounds, kept_out: KeptOut, excluded: Sequence[Excluded] = ()) -> None:
        self._bounds, self._kept_out, self.excluded = bounds, kept_out, excluded

    def refusal(self, turn: Completion, reward: Reward | None) -> str | None:
        """Return why the turn teaches nothing; None when it may.

        The learner's own reasons come first after these two: that nobody said anything (`unrewarded`), and that its
        reward was taken back (`void`)."""
        if reward is None:
            return "unrewarded"
        if reward.void:
            return "void"
        why = refusal(turn, reward, self._bounds)
        if why is not None:
            return why
        if is_excluded(turn, reward, self.excluded):
            return EXCLUDED
        return "eval_solution" if self._kept_out.cases_recalled_in(turn) else None
