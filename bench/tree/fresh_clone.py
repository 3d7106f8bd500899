"""The minutes of `make test` in a fresh clone, with installing: what somebody waits who has just cloned this.

    python -m bench fresh_clone

Packages come from wherever pip has them, and the browser and the services' programs are those that this machine has."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.table import Row, report

ROOT = Path(__file__).resolve().parents[2]
ALL_MINUTES = 8.0
STEPS = (("install", ("make", "install")), ("test", ("make", "test")))
INHERITED = ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")  # what would lead the clone to this checkout's environment


class Failed(Exception):
    """A step that did not pass. The message names it and the file that holds what it printed."""


def minutes_of(repository: Path, directory: Path, log: Path) -> dict[str, float]:
    """Clone a repository's commit into a directory and return the minutes of each step there.

    Raises Failed at the first that does not pass: a run that ended early was shorter."""
    subprocess.run(["git", "clone", "--quiet", str(repository), str(directory)], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
    minutes = {}
    with log.open("w") as printed:
        for name, command in STEPS:
            begun_s = time.monotonic()
            ended = subprocess.run(command, cwd=directory, env=environment, stdout=printed, stderr=subprocess.STDOUT)
            minutes[name] = (time.monotonic() - begun_s) / 60
            if ended.returncode:
                raise Failed(f"{' '.join(command)} failed; {log} says why")
    return minutes


def rows_of(minutes: dict[str, float]) -> list[Row]:
    whole = sum(minutes.values())
    return [
        Row.at_most("`make test` from a fresh clone", whole, "min", "the bar", whole / ALL_MINUTES, 1.0),
        *(Row(f"`make {name}`", value, "min") for name, value in minutes.items()),
    ]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    log = ROOT / "build" / "fresh_clone.log"
    print(f"about ten minutes; {log} holds what is printed", flush=True)
    try:
        with TemporaryDirectory() as made:
            minutes = minutes_of(ROOT, Path(made, "clone"), log)
    except Failed as error:
        sys.exit(str(error))
    report("fresh_clone", rows_of(minutes))


if __name__ == "__main__":
    main()
