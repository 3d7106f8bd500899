"""Predicted rewards of turns, from other users' turns; the line is fitted to what they do not explain.

A prediction is the mean reward of the turn's stratum, shrunk towards that of all turns if the stratum has few. It does
not depend on the answer, so it is the same for the candidate's answer and the given one: differences between strata
neither widen the interval nor count for the candidate. So a stratum must be known before the answer: the components of
a reward are not, and predicting from them would hide what a better candidate does better.

Legend: N turns."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learner.off_policy.jackknife import Floats

PRIOR_TURNS = 10.0
"""Turns with which a stratum's own mean counts as much as the mean of all."""


def predictions(rewards: ArrayLike, strata: ArrayLike, clusters: ArrayLike) -> Floats:
    """Return a prediction for each turn, from turns of other clusters; 0 when there is none.

    Each cluster is a fold of its own (cross-fitting), so that neither order nor chance matters."""
    reward_N = np.asarray(rewards, dtype=np.float64)
    stratum_N, cluster_N = (np.unique(np.asarray(names), return_inverse=True)[1] for names in (strata, clusters))
    both_N = cluster_N * (stratum_N.max(initial=0) + 1) + stratum_N
    turns_N, earned_N = _of_others(np.zeros_like(cluster_N), cluster_N, reward_N)
    overall_N = earned_N / np.maximum(turns_N, 1)
    turns_N, earned_N = _of_others(stratum_N, both_N, reward_N)
    return (earned_N + PRIOR_TURNS * overall_N) / (turns_N + PRIOR_TURNS)


def _of_others(whole_N: NDArray[np.int64], own_N: NDArray[np.int64], reward_N: Floats) -> tuple[Floats, Floats]:
    """Return (turns, sum of their rewards) of each turn's whole, less those of its own part."""

    def rest(column_N: Floats) -> Floats:
        return np.bincount(whole_N, column_N)[whole_N] - np.bincount(own_N, column_N)[own_N]

    return rest(np.ones_like(reward_N)), rest(reward_N)
