"""A comparison of two specs over the same past: what adopting the new one would change."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev, quantiles

import msgspec

from core.events import Reward
from core.ids import InferenceId

BINS = 20


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of the last value of each rewarded turn; None where there is none.

    `components`: the mean over all of them, 0 where a turn lacks it. `histogram`: counts in BINS equal bins from `low`
    to `high`."""

    turns: int
    revisions: int
    mean: float | None
    deviation: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    negative: float | None
    components: dict[str, float]
    low: float
    high: float
    histogram: tuple[int, ...]


class SpecComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of two specs.

    `only_old`, `only_new`: turns that one spec rewards and the other does not. `correlation` and `changed_sign` are of
    the turns that both reward; None when there are too few, or one spec gives all the same."""

    workload: str  # "" for all
    old: Distribution
    new: Distribution
    only_old: int
    only_new: int
    correlation: float | None
    changed_sign: float | None


Last = dict[InferenceId, Reward]


def last_rewards(rewards: Iterable[Reward]) -> Last:
    """Return the last reward of each turn, unless that is void; they come in order of their revisions."""
    last = {reward.inference_id: reward for reward in rewards}
    return {name: reward for name, reward in last.items() if not reward.void}


def compare(old: Last, new: Last) -> list[SpecComparison]:
    """Compare over all turns, then by workload."""
    workloads = sorted({reward.workload for rewards in (old, new) for reward in rewards.values()})
    whole = _compare("", old, new)
    if len(workloads) < 2:
        return [whole]
    before, after = _by_workload(old), _by_workload(new)
    return [whole, *(_compare(name, before.get(name, {}), after.get(name, {})) for name in workloads)]


def _by_workload(rewards: Last) -> dict[str, Last]:
    """Group rewards in one pass: clients name workloads, and there may be as many as there are turns."""
    found: defaultdict[str, Last] = defaultdict(dict)
    for key, reward in rewards.items():
        found[reward.workload][key] = reward
    return found


def _compare(workload: str, old: Last, new: Last) -> SpecComparison:
    values = [reward.value for rewards in (old, new) for reward in rewards.values()] or [0.0]
    low, high = min(values), max(values)
    pairs = [(old[key].value, new[key].value) for key in sorted(old.keys() & new.keys())]
    return SpecComparison(
        workload=workload,
        old=_distribution(old, low, high),
        new=_distribution(new, low, high),
        only_old=len(old.keys() - new.keys()),
        only_new=len(new.keys() - old.keys()),
        correlation=_correlation(pairs),
        changed_sign=fmean(a * b < 0 for a, b in pairs) if pairs else None,
    )


def _distribution(rewards: Mapping[InferenceId, Reward], low: float, high: float) -> Distribution:
    values = sorted(reward.value for reward in rewards.values())
    tenths: Sequence[float | None] = values * 9 if values else [None] * 9
    if len(values) > 1:
        tenths = quantiles(values, n=10, method="inclusive")
    return Distribution(
        turns=len(rewards),
        revisions=sum(reward.revision for reward in rewards.values()),
        mean=fmean(values) if values else None,
        deviation=pstdev(values) if values else None,
        p10=tenths[0],
        p50=tenths[4],
        p90=tenths[8],
        negative=fmean(value < 0 for value in values) if values else None,
        components=_components(rewards.values()),
        low=low,
        high=high,
        histogram=_histogram(values, low, high),
    )


def _components(rewards: Iterable[Reward]) -> dict[str, float]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    count = 0
    for reward in rewards:
        count += 1
        for name, value in reward.components.items():
            found[name].append(value)
    return {name: math.fsum(values) / count for name, values in sorted(found.items())}


def _histogram(values: Sequence[float], low: float, high: float) -> tuple[int, ...]:
    width = (high - low) / BINS or 1.0
    counts = Counter(min(int((value - low) / width), BINS - 1) for value in values)
    return tuple(counts[place] for place in range(BINS))


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation."""
    if len(pairs) < 2:
        return None
    a, b = [old for old, _ in pairs], [new for _, new in pairs]
    spread = pstdev(a) * pstdev(b)
    if spread == 0:
        return None
    mean_a, mean_b = fmean(a), fmean(b)
    return fmean((x - mean_a) * (y - mean_b) for x, y in pairs) / spread
