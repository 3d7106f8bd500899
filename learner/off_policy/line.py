"""The reward as a straight line in the log-ratio: an estimate that says more, where the turns bear it out.

What a candidate earns depends on the answers through m(l) = E[reward | log-ratio l] alone: E[w r] = E[w m(l)], since w
is exp(l). Importance weights leave m open, and pay for it: only the few turns with large weights count. Here m is taken
to be a line, fitted to all turns, and read at the candidate's own log-ratios (`RewardLine`). For a candidate that
follows from the logged policy by KL-regularised improvement this is no approximation: its log-ratio is its reward over
the KL coefficient, less a constant of the prompt (Rafailov et al. 2023, arXiv 2305.18290, eq. 5). What is predicted of
the reward before the answer is taken off first, so that a workload which is liked less and has changed more makes no
slope. It is the regression estimator of surveys (Särndal, Swensson & Wretman 1992, ch. 6), with the candidate's answers
as the population.

A curve that bends makes the line wrong by more than its interval: a candidate that went too far in a good direction
(Gao, Schulman & Hilton 2022, arXiv 2210.10760) would look good. So the bend is estimated too: where the log-ratio's
square shows in the rewards, the line does not count alone.

Legend: N turns, z their log-ratios in standard units, K = degree + 1; any leading axes, of clusters left out."""

from dataclasses import dataclass

import numpy as np

from learner.off_policy.jackknife import Floats, Sums, measure
from learner.off_policy.overlap import LoggedTurns, kish

BENDS_BEYOND = 1.0
"""Standard errors by which the bend must differ from none for the line not to count alone. It is low, since a bend that
remains unseen does more harm than a straight line that is doubted, as a third of them are."""
_FLOOR = 0.01  # share of the turns with the lowest log-ratios: they hardly weigh, and lie too far away to be on a line
_RANK = 1e-9  # singular values below this share of the greatest are of powers that are all but the same


@dataclass(frozen=True)
class RewardLine:
    """Sums by cluster, and the statistics that are computed from them."""

    sums: Sums

    @classmethod
    def of(cls, turns: LoggedTurns) -> "RewardLine":
        z_N, weight_N = _standard(turns.log_ratio_N), np.exp(turns.log_ratio_N)
        value_N = np.zeros_like(z_N) if turns.value_N is None else turns.value_N
        rest_N = turns.reward_N - value_N
        columns_N = {"reward": turns.reward_N, "value": value_N, "rewarded weight": weight_N * turns.reward_N}
        columns_N |= {f"z{power}": z_N**power for power in range(5)}
        columns_N |= {f"rest z{power}": rest_N * z_N**power for power in range(3)}
        columns_N |= {f"weight z{power}": weight_N * z_N**power for power in range(2)}
        return cls(turns.sums(**columns_N))

    def snips(self, sums: Sums) -> Floats:
        return np.asarray(sums["rewarded weight"] / sums["weight z0"])

    def value(self, sums: Sums) -> Floats:
        """Return what is predicted before the answers, and beyond that the line at the candidate's mean log-ratio."""
        level, slope = np.moveaxis(_coefficients(sums, 1), -1, 0)
        return np.asarray(sums["value"] / sums["z0"] + level + slope * sums["weight z1"] / sums["weight z0"])

    def earned(self, sums: Sums) -> Floats:
        """Return the logged policy's mean reward."""
        return sums["reward"] / sums["z0"]

    def bends(self) -> bool:
        """Return whether the square of the log-ratio shows in the rewards, beside the log-ratio."""
        bend, error = measure(self.sums, lambda sums: _coefficients(sums, 2)[..., -1])
        return abs(bend) > BENDS_BEYOND * error

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the line's error: users by their numbers of turns, less two coefficients."""
        return kish(self.sums["z0"]) - 2


def _coefficients(sums: Sums, degree: int) -> Floats:
    """Return the coefficients [..., K] of least squares; 0 for what cannot be told from the others."""
    powers = range(degree + 1)
    products = np.stack([np.stack([sums[f"z{one + other}"] for other in powers], axis=-1) for one in powers], axis=-2)
    rests = np.stack([sums[f"rest z{power}"] for power in powers], axis=-1)
    inverse = np.linalg.pinv(products, rcond=_RANK, hermitian=True)
    return np.asarray((inverse @ rests[..., None])[..., 0])


def _standard(log_ratio_N: Floats) -> Floats:
    floor = np.quantile(log_ratio_N[np.isfinite(log_ratio_N)], _FLOOR, method="inverted_cdf")
    floored_N = np.maximum(log_ratio_N, floor)
    deviation = floored_N.std()
    return np.asarray((floored_N - floored_N.mean()) / (deviation if deviation > 0 else 1.0))
