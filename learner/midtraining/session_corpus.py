"""Logged sessions as a corpus: answers that users accepted, rehearsed against forgetting.

This is experience replay, arXiv:1811.11682. Tokens are those that were sampled, never encoded again from text. Turns of
one session that continue each other are one sequence; only what the model sampled in accepted turns has a weight."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from core.events import Completion, Reward
from core.ids import InferenceId
from core.operations.exclusions import Excluded
from learner.batches.backlog import Bounds
from learner.batches.teachable import Teachable
from learner.sequences.joining import TrainingSequence, merge
from learner.sequences.resemblance import KeptOut
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import sampled_places


class SessionCorpus:
    """A choice of turns. `counts` of all turns: `turns`, `taken`, and the refused ones by reason."""

    def __init__(self, bounds: Bounds, min_reward: float, kept_out: KeptOut) -> None:
        self._teachable, self._min_reward = Teachable(bounds, kept_out), min_reward
        self.counts = Counter[str]()

    def leave_out(self, excluded: Sequence[Excluded]) -> None:
        self._teachable.excluded = excluded

    def documents(
        self, session: Sequence[Completion], rewards: Mapping[InferenceId, Reward]
    ) -> Iterator[dict[str, Any]]:
        """Yield the documents of one session, as `learner.midtraining.corpus` reads them."""
        batch = []
        for turn in session:
            reward = rewards.get(turn.inference_id)
            why = self._refusal(turn, reward)
            self.counts["turns"] += 1
            self.counts[why or "taken"] += 1
            if reward is not None and why is None:
                batch.append(ScoredTurn(turn, reward))
        for sequence in merge(batch):
            yield {"token_ids": sequence.token_ids, "spans": list(_spans(sequence, batch))}

    def _refusal(self, turn: Completion, reward: Reward | None) -> str | None:
        why = self._teachable.refusal(turn, reward)
        if why is None and reward is not None and reward.value < self._min_reward:
            return "below_min_reward"
        return why


def _spans(sequence: TrainingSequence, batch: Sequence[ScoredTurn]) -> Iterator[tuple[int, int]]:
    """Yield the runs of tokens that the model sampled; forced tokens are in none of them."""
    for span in sequence.spans:
        places = enumerate(sampled_places(batch[span.turn].turn))
        for _, run in groupby(places, key=lambda pair: pair[1] - pair[0]):
            found = [place for _, place in run]
            yield span.start + found[0], span.start + found[-1] + 1
