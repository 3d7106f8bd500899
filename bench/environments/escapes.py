"""Who gets out of a sandbox: every program of the tests tries, and is judged from outside.

    python -m bench escapes

The tests are those of `tests/environments/sandboxes/escapes`, run here as they stand: the programs that try to reach
this machine, those that try to use it up or to stay on it, and the walls that are taken away, one by one, to see that
the same programs then get out. What a machine lacks for one of them fails it."""

import asyncio
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from pathlib import Path

from bench.table import Row, report
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import SandboxSpec

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/environments/sandboxes/escapes"
GOAL = 40  # programs that try
OUTWARD, GREED, WALLS = "test_escapes", "test_greed", "test_walls"


def tried(folder: Path, tests: str = TESTS) -> xml.Element:
    """Run the tests, and return what became of each.

    Their properties belong to the older form of the report; to write them in the newer one is a warning, and so an
    error."""
    found = folder / "tests.xml"
    form = ["-o", "junit_family=xunit1", f"--junitxml={found}"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *form, tests]
    environment = {**os.environ, "ONWARD_REQUIRE_SERVICES": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode not in (0, 1):  # 1: some failed, which is what is counted
        sys.exit(f"escapes: the tests were not run: pytest ended with {done.returncode}")
    return xml.parse(found).getroot()


def rows(root: xml.Element) -> list[Row]:
    cases = list(root.iter("testcase"))
    outward = [case for case in _of(cases, OUTWARD) if case.find(".//property[@name='tried']") is not None]
    greed, walls = _of(cases, GREED), _of(cases, WALLS)
    count, out = len(outward), len(_failed(_of(cases, OUTWARD)))
    both = "over this machine's programs and over an image"
    return [
        Row.at_least(f"programs that try to get out, {both}", count, "", str(GOAL), count / GOAL, 1.0),
        Row.at_most("of them, get out", out, f"of {count}", "none", out, 0.0),
        Row("attempts to use up the machine, or to stay on it", len(greed), ""),
        Row.at_most("of them, succeed", len(_failed(greed)), f"of {len(greed)}", "none", len(_failed(greed)), 0.0),
        Row.at_least(
            "walls and limits taken away, without which the same programs get out",
            len(walls) - len(_failed(walls)),
            f"of {len(walls)}",
            "all",
            1 - len(_failed(walls)) / len(walls),
            1.0,
        ),
    ]


def _of(cases: Iterable[xml.Element], module: str) -> list[xml.Element]:
    return [case for case in cases if case.get("classname", "").endswith(module)]


def _failed(cases: Iterable[xml.Element]) -> list[xml.Element]:
    return [case for case in cases if any(case.find(end) is not None for end in ("failure", "error", "skipped"))]


async def _opens(folder: Path) -> None:
    """Raise InfrastructureFailure where no sandbox opens here, before anything is counted."""
    sandboxes = Bubblewrap(folder)
    await (await sandboxes.open(SandboxSpec())).close()


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(_opens(Path(made) / "state"))
        report("escapes", rows(tried(Path(made))))


if __name__ == "__main__":
    main()
