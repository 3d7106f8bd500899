"""A run of tests in a child of this process, upon a source of one module that differs from its file.

The child is forked, so that modules of others are loaded once; of ours none is loaded before."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from bench.mutants.mutations import ROOT, Mutation

LOADED_BEFORE = "ignore::pytest.PytestAssertRewriteWarning"  # no plugin whose asserts matter
QUIET = ("-q", "-p", "no:cacheprovider", "-W", LOADED_BEFORE)
LIBRARIES = ("torch", "transformers", "hypothesis", "sqlalchemy", "pydantic", "pyarrow.parquet", "fastapi", "httpx")
SPARE_CPU_S = 20.0  # for a child to come up, and for a busy machine
TIMES = 4  # as long as its tests take else, before a child is taken to hang
WALL = 15  # seconds that pass for each of the processor's, where others use it


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        path = Path(mutation.path).with_suffix("")
        self._is_package = path.name == "__init__"
        self._name = ".".join(path.parts[:-1] if self._is_package else path.parts)
        self._file, self._source = ROOT / mutation.path, mutation.source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = _Loader(fullname, str(self._file), self._source)
        places = [str(self._file.parent)] if self._is_package else None
        return importlib.util.spec_from_file_location(
            fullname, self._file, loader=loader, submodule_search_locations=places
        )


class _Chosen:
    """A plugin that runs only the chosen tests, in the order in which they are given, and tells which failed."""

    def __init__(self, tests: Sequence[str], told: int) -> None:
        self._places = {test: place for place, test in enumerate(tests)}
        self._told = told

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(chosen, key=lambda item: self._places[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._told, f"{report.nodeid}\n".encode())


def options(files: Sequence[str]) -> tuple[str, ...]:
    """Return pytest's options for some files. Tests that need services run where a fault meets no others."""
    on_a_broker = all(file.startswith("tests/ingest/kafka/") for file in files)
    others = "not compose and not hostile and not clients"
    left_out = others if on_a_broker else f"not verify and {others}"
    return (*QUIET, "-m", left_out, *files)


def put_in_place(mutation: Mutation) -> None:
    """Make every later import of the module load the changed one."""
    sys.meta_path.insert(0, _Finder(mutation))


def load_libraries() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)


def killer(mutation: Mutation, seconds: Mapping[str, float]) -> str | None:
    """Return the first test that fails upon the mutation, or what else ended them; None where all pass."""
    reading, telling = os.pipe()
    files = list(dict.fromkeys(test.partition("::")[0] for test in seconds))

    def work() -> int:
        put_in_place(mutation)
        return int(pytest.main(["-x", *options(files)], plugins=[_Chosen(list(seconds), telling)]))

    cpu_s = SPARE_CPU_S + TIMES * sum(seconds.values())
    status = in_child(work, cpu_s, ROOT / "build" / "mutants" / "trial.log")
    os.close(telling)
    with os.fdopen(reading) as told:
        failed = told.readline().strip()
    if status == 0:
        return None
    assert status != pytest.ExitCode.NO_TESTS_COLLECTED, f"no test of {mutation.name} is there any more"
    return failed or ("time" if status is None else "collection")


def in_child(work: Callable[[], int], cpu_s: float, log: Path) -> int | None:
    """Run the work in a child and return its status; None where a signal ended it or it took too long."""
    child = os.fork()
    if child == 0:
        _run(work, cpu_s, log)
    end_s = time.monotonic() + WALL * cpu_s
    while time.monotonic() < end_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _end_group(child)
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None
        time.sleep(0.05)
    _end_group(child)
    os.waitpid(child, 0)
    return None


def _run(work: Callable[[], int], cpu_s: float, log: Path) -> None:
    """Run the work and never return: nothing of the parent runs twice."""
    status = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 5))
        sys.stdout = sys.stderr = log.open("w")
        os.dup2(sys.stdout.fileno(), 1)
        os.dup2(sys.stdout.fileno(), 2)
        status = work()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        os._exit(status)


def _end_group(leader: int) -> None:
    """Kill every process that the tests have started."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
