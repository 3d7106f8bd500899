"""Quality over time, as rows and as a picture."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core.provenance import in_png
from simulator.outcome.truth import Truth


@dataclass(frozen=True)
class Point:
    """The figures of one moment; None where nothing is known."""

    second: float = 0.0
    quality: float | None = None  # true
    accepted: float | None = None  # reported
    version: int | None = None
    feedback_to_served_p50_s: float | None = None


@dataclass
class RunCurves:
    points: list[Point] = field(default_factory=list)

    def settled(self, truth: Truth) -> "RunCurves":
        """Return the curves with the shares as they turned out.

        At the moment itself the latest sessions had not ended yet."""
        return RunCurves(
            [
                replace(point, quality=truth.quality_at(point.second), accepted=truth.accepted_share(point.second))
                for point in self.points
            ]
        )

    def as_json(self) -> dict[str, list[Any]]:
        names = Point.__dataclass_fields__
        return {name: [getattr(point, name) for point in self.points] for name in names}


def draw(curves: RunCurves, report: dict[str, Any], path: Path) -> None:
    """Draw it; the picture holds the report's provenance."""
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
    figure.savefig(path, dpi=110, metadata=in_png(report["provenance"]))
    plt.close(figure)


def _gap(value: float | None) -> float:
    return float("nan") if value is None else float(value)
