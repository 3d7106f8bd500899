"""A test that may be looked at after every turn.

The difference of two means, estimated again and again as evidence comes, is like a Brownian motion with drift in
information time I = 1 / se² (independent increments; Jennison & Turnbull 1997, Scharfstein, Tsiatis & Robins 1997),
also for clustered data when se is that of the clusters. Mixing the likelihood ratio over a prior of the drift, half of
a normal N(0, σ²), gives a martingale under the null, which exceeds 1/α ever with probability at most α (Ville: Robbins
1970, Johari et al. 2015, arXiv 1512.04922); inverting it bounds the truth from one side at all times together (Howard
et al. 2021, arXiv 1810.08240, the one-sided normal mixture; with an estimated variance asymptotically so, Waudby-Smith
et al. 2021, arXiv 2103.06476). With probability 1 - α, for all I,

    estimate - truth  <=  sqrt( 2 (1 + σ² I) / (σ² I²) * log( 1 + sqrt(1 + σ² I) / (2 α) ) )

and the same for truth - estimate. It is asymptotic: callers ask for a least number of clusters before they believe it.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """An interval whose ends hold at all looks together.

    Each end does so with the probability it was made for; both do with twice the error."""

    estimate: float
    low: float
    high: float


NOTHING_KNOWN = Interval(0.0, -math.inf, math.inf)


def confidence_sequence(estimate: float, se: float, alpha: float, scale: float) -> Interval:
    """Return an interval, each end of which misses with probability `alpha` over all looks together.

    `scale` is σ: a difference of about this size is found soonest."""
    assert 0 < alpha < 1
    assert scale > 0
    if not 0 < se < math.inf:
        return NOTHING_KNOWN if se != 0 else Interval(estimate, estimate, estimate)
    information = se**-2
    spread = 1 + scale**2 * information
    reach = math.sqrt(2 * spread / (scale * information) ** 2 * math.log1p(math.sqrt(spread) / (2 * alpha)))
    return Interval(estimate, estimate - reach, estimate + reach)
