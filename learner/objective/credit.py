"""Credit assignment: which tokens, and which turns, a reward is credited to.

A turn's worth is its own reward plus `turn_discount` times the worth of the turns that continue it (the mean, if there
are several). Its tokens share it, except those that a credit of the reward names: their value is the credit's instead
of the reward's.

Legend: N sampled tokens of a micro-batch."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.events import Completion, Credit
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch


@dataclass(frozen=True)
class TokenCredit:
    """The reward of each token. `turns_N`: index into the batch."""

    turns_N: Tensor
    rewards_N: Tensor


def with_follow(batch: Sequence[ScoredTurn], discount: float) -> list[ScoredTurn]:
    """Return the turns with what the turns of the batch that continue them add.

    A correction that no turn of the batch continues keeps what was applied. A turn that is void gets nothing, and adds
    nothing."""
    if discount == 0:
        return list(batch)
    worths: dict[str, float] = {}
    later: defaultdict[tuple[str | None, str], list[ScoredTurn]] = defaultdict(list)
    for scored in batch:
        later[scored.turn.parent_id, _walk(scored.turn)].append(scored)
    follow: dict[str, float] = {}
    for scored in sorted(batch, key=lambda each: -each.turn.turn_index):
        own = scored.inference_id
        if scored.reward.void:
            follow[own] = 0.0
            continue
        after = [worths[s.inference_id] for s in later[own, _walk(scored.turn)] if s.inference_id in worths]
        kept = scored.applied.follow if scored.applied else 0.0
        follow[own] = discount * sum(after) / len(after) if after else kept
        worths[own] = scored.reward.value + follow[own]
    return [replace(scored, follow=follow[scored.inference_id]) for scored in batch]


def _walk(turn: Completion) -> str:
    """Return what a turn is a step of. A summary is one of the work that it sums up, and that goes on from it."""
    return "turn" if turn.purpose == "summary" else turn.purpose


def credited(part: MicroBatch, batch: Sequence[ScoredTurn]) -> TokenCredit:
    """Return the reward of each token of the micro-batch."""
    return _spread(part, [(scored.worth, scored.follow, scored.reward.credits) for scored in batch])


def applied(part: MicroBatch, batch: Sequence[ScoredTurn]) -> TokenCredit:
    """Return the rewards of the tokens that were applied before; 0 where nothing was."""
    before = [scored.applied for scored in batch]
    return _spread(part, [(a.worth, a.follow, a.credits) if a else (0.0, 0.0, ()) for a in before])


def _spread(part: MicroBatch, shares: Sequence[tuple[float, float, tuple[Credit, ...]]]) -> TokenCredit:
    """Spread each turn's share over its tokens: (worth, how much of it follows from later turns, credits)."""
    turns_N = part.turns_N
    rewards_N = torch.tensor([worth for worth, _, _ in shares], device=turns_N.device)[turns_N]
    for turn, (_, follow, credits) in enumerate(shares):
        for credit in credits:
            of_N = (turns_N == turn) & (part.indices_N >= credit.start) & (part.indices_N < credit.end)
            rewards_N[of_N] = credit.value + follow
    return TokenCredit(turns_N, rewards_N)


def are_sound(credits: Sequence[Credit], turn: Completion) -> bool:
    """Return whether the credits name tokens of the turn, in order, none twice, and have finite values."""
    ends = [place for credit in credits for place in (credit.start, credit.end)]
    apart = all(credit.start < credit.end for credit in credits) and ends == sorted(ends)
    return (
        apart
        and all(0 <= place <= len(turn.token_ids) for place in ends)
        and all(math.isfinite(credit.value) for credit in credits)
    )


def to_go(values_N: Tensor, turns_N: Tensor) -> Tensor:
    """Return the sum of each token's value and of those after it in its turn, whose tokens are adjacent."""
    values, turns = values_N.tolist(), turns_N.tolist()
    for place in range(len(values) - 2, -1, -1):
        if turns[place] == turns[place + 1]:
            values[place] += values[place + 1]
    return torch.tensor(values, dtype=values_N.dtype, device=values_N.device)
