"""Regret over time: a panel for each stream, a line for each way, means over its seeds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from core.provenance import in_png, made_by

_COLUMNS = 4


def draw(
    curves: dict[str, dict[str, list[list[float]]]], horizons: Sequence[int], block: int, default: str, path: Path
) -> None:
    """Draw the picture; `curves` are means of blocks, by stream, way and seed. `horizons` and `block` are turns."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    height = -(-len(curves) // _COLUMNS)
    figure, axes = plt.subplots(
        height, _COLUMNS, figsize=(14, 3.2 * height), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for (stream, ways), axis in zip(curves.items(), axes.flat, strict=False):
        for way, seeds in ways.items():
            mean = np.array(seeds).mean(0)
            at = (np.arange(len(mean)) + 0.5) * block / 1000
            axis.plot(at, mean, label=way, linewidth=2.5 if way == default else 1.0)
        for horizon in horizons:
            axis.axvline(horizon / 1000, color="lightgrey", linewidth=0.8)
        axis.set_title(stream)
    for axis in list(axes.flat)[len(curves) :]:
        axis.axis("off")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower right", fontsize=8)
    figure.supxlabel("thousands of turns learned from")
    figure.supylabel("regret a turn")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata=in_png(made_by("python -m bench regret")))
    plt.close(figure)
