"""Quality over time, as rows and as a picture."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Point:
    second: float
    quality: float | None  # true
    accepted: float | None  # reported
    version: int | None
    feedback_to_served_p50_s: float | None


@dataclass
class Curves:
    points: list[Point] = field(default_factory=list)

    def as_json(self) -> dict[str, list[Any]]:
        names = Point.__dataclass_fields__
        return {name: [getattr(point, name) for point in self.points] for name in names}


def draw(curves: Curves, report: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    seconds = [point.second for point in curves.points]
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=(3, 1))
    above.plot(seconds, [_gap(point.quality) for point in curves.points], label="true quality", linewidth=2)
    above.plot(seconds, [_gap(point.accepted) for point in curves.points], label="reported accepted", alpha=0.7)
    if report["quality_start"] is not None:
        above.axhline(report["quality_start"], color="grey", linestyle=":", label="before learning")
    above.set_ylim(0, 1)
    above.set_ylabel("share of sessions (last 20 s)")
    above.legend(loc="lower right")
    above.set_title(f"A model that learns from its users (seed {report['seed']}, {report['versions']} versions)")
    below.plot(seconds, [_gap(point.version) for point in curves.points], color="tab:green")
    below.set_ylabel("policy version")
    below.set_xlabel("seconds of traffic")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _gap(value: float | None) -> float:
    return float("nan") if value is None else float(value)
