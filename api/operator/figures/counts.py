"""What this process has counted, read back from the catalogue of metrics."""

import math

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

Labels = tuple[str, ...]


def values(counter: Counter) -> dict[Labels, float]:
    """Return the counter's values under the values of its labels, in their order."""
    return {labels: value for metric in counter.collect() for labels, value in _totals(metric).items()}


def value(gauge: Gauge) -> float:
    """Return the value of a gauge without labels."""
    return next(sample.value for metric in gauge.collect() for sample in metric.samples)


def quantile_of(histogram: Histogram, share: float) -> float | None:
    """Return about the value below which that share of the observations lies; None where there are none.

    Within a bucket they are taken to be spread evenly, as Prometheus' `histogram_quantile` does; what lies above the
    last bound counts as that bound."""
    samples = [sample for metric in histogram.collect() for sample in metric.samples if "le" in sample.labels]
    rows = [(float(sample.labels["le"]), sample.value) for sample in samples]
    wanted = share * rows[-1][1]
    if not wanted:
        return None
    low, below = 0.0, 0.0
    for bound, count in rows:
        if count >= wanted:
            return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


def _totals(metric: Metric) -> dict[Labels, float]:
    samples = (sample for sample in metric.samples if sample.name.endswith("_total"))
    return {tuple(sample.labels.values()): sample.value for sample in samples}
