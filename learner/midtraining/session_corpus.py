"""Logged sessions as a corpus: answers that users accepted, rehearsed against forgetting.

This is experience replay, arXiv:1811.11682. Tokens are those that were sampled, never encoded again from text. Turns of
one session that continue each other are one sequence; only what the model sampled in accepted turns has a weight."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from core.events import Completion, Reward
from core.ids import InferenceId
from learner.batches.backlog import Bounds, refusal
from learner.sequences.joining import TrainingSequence, merge
from learner.sequences.kept_out import KeptOut
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import sampled_places

OtherPrompt = Callable[[Completion], tuple[int, ...] | None]
"""Returns the prompt that a session's first turn would have had under other instructions; None where it had none."""


class SessionCorpus:
    """A choice of turns. `counts` of all turns: `turns`, `taken`, and the refused ones by reason.

    With `other_prompt` the answers stand after other instructions than those that they were sampled under: what is
    learned is to do without these (prompt distillation, arXiv:2112.00861 and 2209.15189)."""

    def __init__(
        self,
        bounds: Bounds,
        min_reward: float,
        kept_out: KeptOut,
        other_prompt: OtherPrompt | None = None,
    ) -> None:
        self._bounds, self._min_reward, self._kept_out = bounds, min_reward, kept_out
        self._other_prompt = other_prompt
        self.counts = Counter[str]()

    def documents(
        self, session: Sequence[Completion], rewards: Mapping[InferenceId, Reward]
    ) -> Iterator[dict[str, Any]]:
        """Yield the documents of one session, as `learner.midtraining.corpus` reads them."""
        batch = []
        for turn in session:
            reward, shown = rewards.get(turn.inference_id), self._shown(turn, session)
            why = "instructions_not_found" if shown is None else self._refusal(shown, reward)
            self.counts["turns"] += 1
            self.counts[why or "taken"] += 1
            if reward is not None and shown is not None and why is None:
                batch.append(ScoredTurn(shown, reward))
        for sequence in merge(batch):
            yield {"token_ids": sequence.token_ids, "spans": list(_spans(sequence, batch))}

    def _shown(self, turn: Completion, session: Sequence[Completion]) -> Completion | None:
        """Return the turn as it is learned from; None where it has no instructions that could be exchanged."""
        return turn if self._other_prompt is None else _under_other_prompt(turn, session, self._other_prompt)

    def _refusal(self, turn: Completion, reward: Reward | None) -> str | None:
        if reward is None:
            return "unrewarded"
        why = refusal(turn, reward, self._bounds)
        if why is not None:
            return why
        if reward.value < self._min_reward:
            return "below_min_reward"
        return self._kept_out.refusal(turn)


def _under_other_prompt(turn: Completion, session: Sequence[Completion], other: OtherPrompt) -> Completion | None:
    """Return the turn with the prompt's beginning, that of its session's first turn, made anew; None where it differs.

    What follows this beginning stays token for token, the answers that were sampled above all."""
    known = {each.inference_id: each for each in session}
    first = turn
    while first.parent_id is not None and first.parent_id in known:
        first = known[first.parent_id]
    size, prompt = len(first.prompt_token_ids), other(first)
    if prompt is None or turn.prompt_token_ids[:size] != first.prompt_token_ids:
        return None
    return msgspec.structs.replace(turn, prompt_token_ids=prompt + turn.prompt_token_ids[size:])


def _spans(sequence: TrainingSequence, batch: Sequence[ScoredTurn]) -> Iterator[tuple[int, int]]:
    """Yield the runs of tokens that the model sampled; forced tokens are in none of them."""
    for span in sequence.spans:
        places = enumerate(sampled_places(batch[span.turn].turn))
        for _, run in groupby(places, key=lambda pair: pair[1] - pair[0]):
            found = [place for _, place in run]
            yield span.start + found[0], span.start + found[-1] + 1
