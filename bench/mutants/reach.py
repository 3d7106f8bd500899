"""The lines that tests reach, and how long the tests take: measured once for each file of tests, on demand."""

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import coverage
import pytest

from bench.mutants.mutations import PARTS, ROOT, Mutation
from bench.mutants.trial import in_child, options

PLACE = ROOT / "build" / "mutants"
CPU_S = 600.0  # for a file of tests
Seconds = dict[str, float]
"""How long each of some tests takes."""


def beside(mutation: Mutation) -> list[str]:
    """Return the files of tests that stand where the changed file does."""
    return _files(ROOT / "tests" / Path(mutation.path).parent, "test_*.py")


def elsewhere(mutation: Mutation) -> list[str]:
    """Return all other files of tests of the changed file's part, and the contracts."""
    part = next(part for part in PARTS if mutation.path.startswith(f"{part}/"))
    others = [*_files(ROOT / "tests" / part, "**/test_*.py"), *_files(ROOT / "tests" / "contracts", "**/test_*.py")]
    return [each for each in others if each not in beside(mutation)]


def _files(folder: Path, pattern: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in folder.glob(pattern))


def tests_that_reach(mutation: Mutation, files: Sequence[str]) -> Seconds:
    """Return the tests that run the changed line, or whose fixtures do, the quickest first.

    They are those that pass on the unchanged code."""
    found: dict[str, Seconds] = {}
    for file in files:
        seconds, lines = _measured(file)
        known = lines[mutation.path, mutation.line]
        found[file] = {test: seconds[test] for test in seconds if {test, file} & known}
    ordered = sorted(found.values(), key=lambda tests: sum(tests.values()))
    return {test: tests[test] for tests in ordered for test in sorted(tests, key=lambda test: tests[test])}


@cache
def _measured(tests: str) -> tuple[Seconds, dict[tuple[str, int], set[str]]]:
    """Return how long the tests of a file take, and by source file and line what runs it.

    That is tests, or the file itself for their fixtures."""
    PLACE.mkdir(parents=True, exist_ok=True)
    place = PLACE / tests.replace("/", ".")
    data_file, seconds_file = place.with_suffix(".coverage"), place.with_suffix(".json")
    if not seconds_file.exists() and in_child(lambda: _measure(tests, place), CPU_S, place.with_suffix(".log")) is None:
        raise RuntimeError(f"{tests} did not end: see {place.with_suffix('.log')}")
    data = coverage.CoverageData(str(data_file))
    data.read()
    lines: dict[tuple[str, int], set[str]] = defaultdict(set)
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            lines[Path(file).relative_to(ROOT).as_posix(), line] |= set(contexts)
    return json.loads(seconds_file.read_text()), lines


def _measure(tests: str, place: Path) -> int:
    sources = [str(ROOT / part) for part in PARTS]
    measured = coverage.Coverage(data_file=str(place.with_suffix(".coverage")), source=sources, config_file=False)
    contexts = _Contexts(measured)
    measured.start()
    status = pytest.main(list(options([tests])), plugins=[contexts])
    measured.stop()
    measured.save()
    place.with_suffix(".json").write_text(json.dumps(contexts.seconds))
    return int(status)


class _Contexts:
    """A plugin that tells the measurement which test runs, and notes those that pass."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: Seconds = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._measured.switch_context(item.nodeid.partition("::")[0])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._measured.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration
