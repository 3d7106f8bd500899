"""Sources: in an update of production and simulation, the turns of each are centred and scaled among themselves.

Their rewards are of different spreads (a test that passes or fails; a word of praise now and then): on one scale those
that vary less would hardly count. A source needs a few turns to tell its spread by; with fewer, the update has one
scale for all.

Legend: M turns of the batch."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from learner.objective.advantages.base import MIN_SCALE, whitened
from learner.sequences.scored import ScoredTurn

_FEWEST = 8


def sources_of(batch: Sequence[ScoredTurn]) -> list[list[int]]:
    """Return the places of each source's turns in the batch; all together where there is one, or one is too small."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, scored in enumerate(batch):
        places[scored.turn.environment].append(place)
    if min((len(rewarded(batch, each)) for each in places.values()), default=0) < _FEWEST:
        return [list(range(len(batch)))]
    return list(places.values())


def whitened_apart(batch: Sequence[ScoredTurn], rewards_M: Tensor, raw_M: Tensor) -> tuple[Tensor, list[float]]:
    """Return (baselines_M, scales) for advantages of mean 0 and standard deviation 1 over each source.

    With credits the mean of a turn's tokens counts as its reward, so that a turn's blame for a few tokens does not
    praise all others; the spread is still that of whole turns, or the blame for few tokens would be blown up."""
    moved_M = torch.tensor([scored.mean_worth - scored.worth for scored in batch])
    baselines_M, scales = rewards_M.clone(), [0.0] * len(batch)
    for places in sources_of(batch):
        told = rewarded(batch, places)
        baselines_M[told], scale = whitened(rewards_M[told], raw_M[told], moved_M[told])
        for place in places:
            scales[place] = own_scale(batch[place], scale)
    return baselines_M, scales


def mean_reward(batch: Sequence[ScoredTurn], rewards_M: Tensor) -> float:
    """Return the mean of the rewards that are not void; 0 where there are none."""
    told = rewarded(batch, range(len(batch)))
    return float(rewards_M[told].mean()) if told else 0.0


def rewarded(batch: Sequence[ScoredTurn], places: Iterable[int]) -> list[int]:
    """Return the places without turns that are void: their 0 takes something back, and says nothing of an answer."""
    return [place for place in places if not batch[place].reward.void]


def own_scale(scored: ScoredTurn, scale: float) -> float:
    """Return the scale of a turn where that of its source's turns is `scale`.

    Where these are so much alike that their spread says nothing, no token's credit counts for more than one standard
    deviation: by MIN_SCALE it would for up to forty."""
    if scale > MIN_SCALE:
        return scale
    return max(scale, *(abs(credit.value - scored.reward.value) for credit in scored.reward.credits), 0.0)
