"""The estimators of the candidate's mean reward, or of that less the logged policy's, each with its interval.

`snips` is sum w r / sum w (Hesterberg 1995; Swaminathan & Joachims 2015, "The Self-Normalized Estimator for
Counterfactual Learning"): it assumes nothing of the rewards, and unlike plain importance sampling its verdict does not
change when all of them are shifted. `line` takes the reward to be a straight line in the log-ratio, read at the
candidate's answers (`learner.off_policy.line`): it is half as wide, and wrong where the rewards bend. `stated` is what
counts: the line where no bend shows, and else the value of `snips` within an interval that holds those of both, so that
both have to agree.

They are written here because no library that has them is maintained: obp, vw-estimators and scope-rl had their last
releases in 2023."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from learner.off_policy.jackknife import Floats, JackknifeEstimate, Statistic, Sums, estimate
from learner.off_policy.line import RewardLine
from learner.off_policy.overlap import MIN_EFFECTIVE, LoggedTurns, Overlap, overlap


@dataclass(frozen=True)
class OffPolicy:
    """The result of an evaluation.

    `values`: the candidate's mean reward by estimator; `gains`: the same less what was earned on these turns. Both are
    empty when `overlap.refused` says why. `bends`: whether the rewards do, so that the line does not count alone."""

    overlap: Overlap
    bends: bool = False
    values: Mapping[str, JackknifeEstimate] = field(default_factory=dict)
    gains: Mapping[str, JackknifeEstimate] = field(default_factory=dict)


def off_policy(turns: LoggedTurns, *, confidence: float = 0.95, min_effective: float = MIN_EFFECTIVE) -> OffPolicy:
    """Evaluate the candidate."""
    found = overlap(turns, min_effective)
    if found.refused is not None:
        return OffPolicy(found)
    line = RewardLine.of(turns)
    bends = line.bends()

    def all_of(less: Statistic) -> dict[str, JackknifeEstimate]:
        def one(of: Statistic, freedom: float) -> JackknifeEstimate:
            return estimate(line.sums, lambda sums: of(sums) - less(sums), freedom, confidence)

        snips, straight = one(line.snips, found.effective_clusters - 1), one(line.value, line.freedom)
        return {"stated": _either(snips, straight) if bends else straight, "line": straight, "snips": snips}

    return OffPolicy(found, bends, all_of(lambda sums: np.zeros_like(sums["z0"])), all_of(line.earned))


@dataclass(frozen=True)
class Paired:
    """What one candidate would have earned beyond another, on the same turns; `refused`, `bends`: as for one alone."""

    refused: str | None
    bends: bool = False
    differences: Mapping[str, JackknifeEstimate] = field(default_factory=dict)


def paired(one: LoggedTurns, other: LoggedTurns, *, confidence: float = 0.95) -> Paired:
    """Compare two candidates on the same turns.

    What a user's turns do to both estimates they do to each at once, so that the interval of the difference is narrower
    than those of the two where the candidates resemble each other. Raises ValueError for other turns."""
    for column in ("reward_N", "cluster_N"):
        if not np.array_equal(getattr(one, column), getattr(other, column)):
            raise ValueError("the candidates are not compared on the same turns")
    overlaps = [overlap(turns) for turns in (one, other)]
    if refused := [found.refused for found in overlaps if found.refused is not None]:
        return Paired("; ".join(dict.fromkeys(refused)))
    lines = (RewardLine.of(one), RewardLine.of(other))
    bends = any(line.bends() for line in lines)
    sums = {f"{side} {name}": column_G for side, line in enumerate(lines) for name, column_G in line.sums.items()}

    def less(of: Statistic) -> Statistic:
        def one_side(sums: Sums, side: int) -> Floats:
            return of({name.removeprefix(f"{side} "): sums[name] for name in sums if name.startswith(f"{side} ")})

        return lambda sums: one_side(sums, 0) - one_side(sums, 1)

    worth = min(found.effective_clusters for found in overlaps)
    snips = estimate(sums, less(lines[0].snips), worth - 1, confidence)
    line = estimate(sums, less(lines[0].value), lines[0].freedom, confidence)
    return Paired(None, bends, {"stated": _either(snips, line) if bends else line, "line": line, "snips": snips})


def _either(snips: JackknifeEstimate, line: JackknifeEstimate) -> JackknifeEstimate:
    return JackknifeEstimate(snips.value, min(snips.low, line.low), max(snips.high, line.high))
