"""What a holdback costs the others: demos with a fifth of the users on the first version, beside demos without.

    python -m bench holdback [--seeds 3] [--seconds 90]

Both are run for each seed, one after the other. What the others' versions were worth is the mean reward of their last
turns; how far the learner went is the largest KL of an update to the policy that sampled."""

import argparse
import math
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import fmean, stdev

from rich.progress import track

from bench.table import Row, report
from core.ids import Namespace
from core.store import open_sqlite

SHARE = 0.2
LAST = 1000  # turns
MOST_LOST = 0.1  # of the mean reward
# Student's t, two-sided, at 95 %, by degrees of freedom from 1 on.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def run(seed: int, share: float, seconds: float) -> tuple[float, float]:
    """Return the mean reward of the last turns of versions after the first, and the largest KL of an update."""
    with tempfile.TemporaryDirectory(prefix="onward-holdback-") as folder:
        command = [sys.executable, "-m", "onward", "demo", folder, "--seed", str(seed), "--seconds", str(seconds)]
        environment = os.environ | {"ONWARD_RELEASE__HOLDBACK__SHARE": str(share)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not (Path(folder) / "report.json").exists():
            sys.exit(f"the demo ended with {ended.returncode}: {ended.stdout[-1000:]}{ended.stderr[-1000:]}")
        with closing(open_sqlite(Path(folder) / "service" / "store.db")) as store, store.look() as view:
            worth = view.curves.worth(Namespace("default"), 4 * LAST)
            divergences = [float(policy.metrics.get("divergence", 0.0)) for policy, _ in view.policies.newest(1000)]
    rewards = [each.value for each in worth if each.version is not None and each.version.version > 1]
    return fmean(rewards[:LAST]), max(divergences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    pairs = [
        (run(seed, SHARE, options.seconds), run(seed, 0.0, options.seconds))
        for seed in track(range(options.seeds), f"{options.seeds} pairs of demos")
    ]
    lost = [without[0] - held[0] for held, without in pairs]
    half = T_95[len(lost) - 2] * stdev(lost) / math.sqrt(len(lost)) if len(lost) > 1 else math.inf
    held, without = fmean(held[0] for held, _ in pairs), fmean(bare[0] for _, bare in pairs)
    against = f"{len(pairs)} seeds, paired"
    rows = [
        Row("mean reward of the others, with a holdback of 0.2", held, "reward", "without", held / without),
        Row("mean reward without", without, "reward"),
        Row("lost by it", fmean(lost), "reward", against, fmean(lost), MOST_LOST, fmean(lost) <= MOST_LOST),
        Row("half of the 95 % interval of that", half, "reward", against),
        Row("largest divergence of an update, with", max(held[1] for held, _ in pairs), "nats a turn"),
        Row("largest divergence of an update, without", max(bare[1] for _, bare in pairs), "nats a turn"),
    ]
    report("holdback", rows)


if __name__ == "__main__":
    main()
