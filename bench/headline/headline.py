"""The figures by which somebody sees that Onward got slower, in a quarter of an hour, beside a commit if asked.

    python -m bench headline [--against COMMIT] [--rounds 2] [NAME ...]

Each round measures everything once, of both commits in turns. The earlier commit is checked out beside, and measured
by its own `bench/`, whose names fit its product. The rows go to `bench/results/headline.json` and into
`docs/results.md`, unless only some are measured. Ends with 1 where a figure is worse than the earlier commit's in every
round."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.headline.figures import FIGURES, middle
from bench.headline.page import write_page
from bench.table import RESULTS, commit, day, machine

ROOT = Path(__file__).resolve().parents[2]
MEASURES = ("demo", "api", "two", "engine", "log", "scorer", "monitors", "start")
COMPILE = "from serving.engines.local.native.library import main; main()"
Found = Mapping[str, list[float]]
"""The values of each figure, one a round."""


def measure(tree: Path, name: str) -> dict[str, float]:
    """Run a measurement of a tree by its own `bench/`. Raises CalledProcessError.

    This command measures every commit that has a headline, so the module must keep its name."""
    printed = in_tree([sys.executable, "-m", "bench.headline.measures", name], tree)
    figures: dict[str, float] = json.loads(printed.splitlines()[-1])["figures"]
    return figures


def in_tree(command: Sequence[str], tree: Path) -> str:
    """Run a command on the code of a tree; return what it prints. Raises CalledProcessError."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'kernels'}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


@contextmanager
def checked_out(version: str) -> Iterator[Path]:
    """Check a commit out beside this tree."""
    with tempfile.TemporaryDirectory(prefix="onward-headline-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, version], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def measured(trees: Sequence[Path], names: Sequence[str], rounds: int) -> list[dict[str, list[float]]]:
    """Return what was found on each tree; which of them is first changes with each measurement."""
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in trees]
    steps = [(turn, name) for turn in range(rounds) for name in names]
    for number, (_, name) in enumerate(track(steps, "headline")):
        order = range(len(trees)) if number % 2 == 0 else reversed(range(len(trees)))
        for which in order:
            try:
                figures = measure(trees[which], name)
            except subprocess.CalledProcessError as error:
                if which == 0:
                    raise
                print(f"the earlier commit cannot be measured by {name}: it ended with {error.returncode}")
                continue
            for figure, value in figures.items():
                found[which][figure].append(value)
    return found


def rows_of(found: Found, before: Found | None) -> list[dict[str, object]]:
    """Return the rows as they are written down; `spread` is from the least to the largest value.

    `ratio` is to what was measured in the same run, and None where nothing was."""
    rows: list[dict[str, object]] = []
    for figure in FIGURES:
        values = found.get(figure.name)
        if not values:
            continue
        value = middle(values)
        row: dict[str, object] = {"metric": figure.metric, "value": value, "unit": figure.unit}
        row |= {"against": figure.against, "ratio": value if figure.is_ratio else None, "goal": figure.goal}
        row |= {"holds": figure.holds(value), "spread": [min(values), max(values)]}
        if before is not None and before.get(figure.name):
            row["before"] = middle(before[figure.name])
        rows.append(row)
    return rows


def show(found: Found, before: Found | None, against: str | None) -> list[str]:
    """Print the table; return the metrics that got worse."""
    worse: list[str] = []
    table = Table("metric", "now", "spread", against or "before", "goal", "holds", title=f"headline on {machine()}")
    for figure in FIGURES:
        values = found.get(figure.name, [])
        if not values:
            continue
        then = (before or {}).get(figure.name, [])
        if then and figure.is_worse(values, then):
            worse.append(figure.metric)
        mark = " WORSE" if figure.metric in worse else ""
        spread, earlier = f"{min(values):.3g} to {max(values):.3g}", f"{middle(then):.3g}{mark}" if then else ""
        is_held = "yes" if figure.holds(middle(values)) else "NO"
        table.add_row(figure.metric, f"{middle(values):.3g}", spread, earlier, f"{figure.goal:g}", is_held)
    Console(width=max(120, Console().width)).print(table)
    return worse


def write(found: Found, before: Found | None, against: str | None) -> None:
    content: dict[str, object] = {"machine": machine(), "commit": commit(), "day": day()}
    content |= {} if against is None else {"against": against}
    content["rows"] = rows_of(found, before)
    (RESULTS / "headline.json").write_text(json.dumps(content, indent=2) + "\n")
    write_page()


def compile_step(tree: Path) -> None:
    """Compile the engine's step, as `make install` does: a tree that lacks it would be measured as a slower one."""
    if (tree / "serving" / "engines" / "local" / "native").exists():
        in_tree([sys.executable, "-c", COMPILE], tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT", help="measure this commit, too, in turns")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only some of {', '.join(MEASURES)}")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"{', '.join(sorted(unknown))}: there is {', '.join(MEASURES)}")
    names = options.names or MEASURES
    compile_step(ROOT)
    if options.against:
        with checked_out(options.against) as tree:
            compile_step(tree)
            found, before = measured([ROOT, tree], names, options.rounds)
        if not before:
            sys.exit(f"nothing of {options.against} could be measured")
    else:
        (found,), before = measured([ROOT], names, options.rounds), None
    worse = show(found, before, options.against)
    if not options.names:
        write(found, before, options.against)
    if worse:
        sys.exit(f"worse than {options.against} in every round: {'; '.join(worse)}")


if __name__ == "__main__":
    main()
