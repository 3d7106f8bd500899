"""Credit assignment: which tokens, and which turns, a reward is credited to.

A turn's worth is its own reward plus `turn_discount` times the worth of the turns that continue it (the mean, if there
are several). Its tokens share it, except those that a credit of the reward names: their value is the credit's instead
of the reward's. Tokens that share a value are an episode, and are rewarded at its end.

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
    """The reward of each token. `turns_N`: index into the batch.

    An episode's tokens share a number and are adjacent."""

    turns_N: Tensor
    rewards_N: Tensor
    episodes_N: Tensor


def with_follow(batch: Sequence[ScoredTurn], discount: float) -> list[ScoredTurn]:
    """Return the turns with what the turns of the batch that continue them add.

    A correction that no turn of the batch continues keeps what was applied."""
    if discount == 0:
        return list(batch)
    worths: dict[str, float] = {}
    later: defaultdict[tuple[str | None, str], list[ScoredTurn]] = defaultdict(list)
    for scored in batch:
        later[scored.turn.parent_id, scored.turn.purpose].append(scored)
    follow: dict[str, float] = {}
    for scored in sorted(batch, key=lambda each: -each.turn.turn_index):
        own = scored.inference_id
        after = [worths[s.inference_id] for s in later[own, scored.turn.purpose] if s.inference_id in worths]
        kept = scored.applied.follow if scored.applied else 0.0
        follow[own] = discount * sum(after) / len(after) if after else kept
        worths[own] = scored.reward.value + follow[own]
    return [replace(scored, follow=follow[scored.inference_id]) for scored in batch]


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
    most = max((len(credits) for _, _, credits in shares), default=0)
    episodes_N = turns_N * (most + 1)
    for turn in sorted(set(turns_N.tolist())) if most else ():
        _, follow, credits = shares[turn]
        for number, credit in enumerate(credits, 1):
            of_N = (turns_N == turn) & (part.indices_N >= credit.start) & (part.indices_N < credit.end)
            rewards_N[of_N] = credit.value + follow
            episodes_N[of_N] += number
    return TokenCredit(turns_N, rewards_N, episodes_N)


def are_sound(credits: Sequence[Credit], turn: Completion) -> bool:
    """Return whether the credits name tokens of the turn, in order, none twice, and have finite values."""
    ends = [place for credit in credits for place in (credit.start, credit.end)]
    apart = all(credit.start < credit.end for credit in credits) and ends == sorted(ends)
    return (
        apart
        and all(0 <= place <= len(turn.token_ids) for place in ends)
        and all(math.isfinite(credit.value) for credit in credits)
    )


def to_go(values_N: Tensor, episodes_N: Tensor, factor: float) -> Tensor:
    """Return each token's value plus `factor` times what its successor in the episode has to go."""
    goes_on = follows_on(episodes_N).tolist()
    values, total = values_N.tolist(), 0.0
    for place in range(len(values) - 1, -1, -1):
        total = values[place] + (factor * total if goes_on[place] else 0.0)
        values[place] = total
    return torch.tensor(values, dtype=values_N.dtype, device=values_N.device)


def follows_on(episodes_N: Tensor) -> Tensor:
    """Return [N] bool: whether the next token is of the same episode."""
    last = torch.zeros(1, dtype=torch.bool, device=episodes_N.device)
    return torch.cat([episodes_N[1:] == episodes_N[:-1], last])


def fading(episodes_N: Tensor, factor: float) -> Tensor:
    """Return [N]: the share of the reward at its episode's end that reaches each token, `factor` a step."""
    if factor == 1:
        return torch.ones(len(episodes_N), device=episodes_N.device)
    return to_go((~follows_on(episodes_N)).float(), episodes_N, factor)
