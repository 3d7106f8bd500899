"""Mutations of the learner, scoring, releases and ingest, each of which has to make a test fail.

    python -m bench mutants [--count 300] [--seed 0] [--again]

A mutation is chosen by the seed among all that mutmut makes of the functions there, and lives in one child process
only; no file changes. The tests beside it that reach its line run upon it until one fails; what survives all of
these then meets those of its part. One that hangs is killed too. Results are kept in
`bench/results/mutants_runs.json`, so that the sample can be tried in pieces; `--again` tries those anew that survived.
`equivalent.toml` says why some survivors change nothing that anybody could notice; they count neither way. Which tests
reach what is measured once, into `build/mutants`."""

import argparse
import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench.mutants.mutations import PARTS, Mutation, sample
from bench.mutants.reach import beside, elsewhere, tests_that_reach
from bench.mutants.trial import killer, load_libraries
from bench.table import RESULTS, Row, commit, report

RUNS = RESULTS / "mutants_runs.json"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
GOAL = 0.85
SAMPLED = 300
COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
Run = dict[str, str | None]
"""The result of a mutation: who killed it (None: nobody), which tests it met last, and the commit it was tried on."""
NEW: Run = {"killed_by": None, "met": None}
WHERE = {"beside": beside, "elsewhere": elsewhere}


def try_all(waiting: Sequence[Mutation], runs: dict[str, Run]) -> None:
    """Try mutations upon the tests beside them, and then those that survive upon the others of their part.

    So an end at any time leaves a bound: what has met no other tests yet counts as a survivor."""
    for where, files_of in WHERE.items():
        left = [each for each in waiting if runs.get(each.name, NEW)["killed_by"] is None]
        with Progress(*COLUMNS) as progress:
            task = progress.add_task(where, total=len(left))
            for each in left:
                found = killed_by(each, files_of(each))
                runs[each.name] = {"killed_by": found, "met": where, "line": str(each.line), "commit": commit()}
                RUNS.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n")
                fate = "killed" if found else "survives"
                progress.console.print(f"{fate} {where}  {each.line}  {each.name}  {found or ''}")
                progress.advance(task)


def killed_by(mutation: Mutation, files: Sequence[str]) -> str | None:
    tests = tests_that_reach(mutation, files)
    return killer(mutation, tests) if tests else None


def rows_of(tried: Sequence[Mutation], runs: dict[str, Run], equivalent: Iterable[str], wanted: int) -> list[Row]:
    """Return the share that was killed, of all and of each part."""
    told = set(equivalent)
    counted = [each for each in tried if each.name not in told]
    rows = [
        Row("mutations tried", len(tried), "mutations", "of the sample", len(tried) / wanted, 1.0, len(tried) >= wanted)
    ]
    rows.append(Row("of them equivalent, as argued", len(tried) - len(counted), "mutations"))
    for part in ("all", *PARTS):
        of_part = [each for each in counted if part == "all" or each.path.startswith(f"{part}/")]
        if not of_part:
            continue
        killed = sum(runs[each.name]["killed_by"] is not None for each in of_part)
        goal = GOAL if part == "all" else None
        share = killed / len(of_part)
        rows.append(
            Row(f"killed, {part}", killed, "mutations", "of those tried", share, goal, goal is None or share >= goal)
        )
    versions = ", ".join(sorted({str(runs[each.name]["commit"]) for each in tried}))
    return [Row(row.metric, row.value, row.unit, row.against, row.ratio, row.goal, row.holds, versions) for row in rows]


def show_survivors(tried: Sequence[Mutation], runs: dict[str, Run], equivalent: dict[str, str]) -> None:
    table = Table("file", "before", "after", "", title="Survivors")
    for each in tried:
        if runs[each.name]["killed_by"] is None:
            table.add_row(f"{each.path}:{each.line}", each.before, each.after, equivalent.get(each.name, ""))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=SAMPLED)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    load_libraries()
    mutations = sample(options.seed, options.count)
    runs: dict[str, Run] = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    met_all = "elsewhere" if not options.again else None
    over = {name for name, run in runs.items() if run["killed_by"] is not None or run["met"] == met_all}
    equivalent: dict[str, str] = tomllib.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    try:
        try_all([each for each in mutations if each.name not in over], runs)
    except KeyboardInterrupt:
        Console().print("ended early: rows are of what was tried")
    tried = [each for each in mutations if each.name in runs]
    show_survivors(tried, runs, equivalent)
    report("mutants", rows_of(tried, runs, equivalent, options.count))


if __name__ == "__main__":
    main()
