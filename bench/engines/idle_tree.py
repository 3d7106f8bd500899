"""Measure what a tree of distributed processes costs while nobody asks anything of it, in processors.

Two of each as `make demo MODE=distributed` starts them, on the services of `make services`; the engines' own processes
are SGLang's and do not count.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.engines.sglang_world import PYTHON, require_sglang
from bench.services import running
from bench.table import Row, report

GOAL_CORES = 0.1
_TWO_OF_EACH = {
    "ONWARD_MODE": "distributed",
    "ONWARD_PROCESSES__API": "2",
    "ONWARD_PROCESSES__SCORE": "2",
    "ONWARD_SERVING__ENGINE": "sglang",
    "ONWARD_SERVING__SGLANG__REPLICAS": "2",
    "ONWARD_SERVING__SGLANG__PYTHON": str(PYTHON),
    "ONWARD_SERVING__SGLANG__ARGUMENTS": '["--sleep-on-idle"]',
    "ONWARD_RELEASE__CANARY__ENABLED": "off",
}
_START_TIMEOUT_S = 400.0
_SETTLE_S = 20.0  # after it is ready: groups share their partitions, engines are probed
_MEASURED_S = 20.0
_SPANS = 3


def main() -> None:
    require_sglang()
    environment = {**os.environ, **_settings_of(running().fresh()), **_TWO_OF_EACH, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, _tree(Path(folder) / "service", environment) as tree:
        time.sleep(_SETTLE_S)
        spans = [_cores(tree.pid) for _ in range(_SPANS)]
    chosen = sorted(spans, key=lambda span: sum(span.values()))[_SPANS // 2]
    total = sum(chosen.values())
    rows = [Row.at_most("an idle tree", total, "cores", "one core", total, GOAL_CORES)]
    rows += [Row(f"of it: {name}", cores, "cores") for name, cores in sorted(chosen.items())]
    report("idle_tree", rows)


def _settings_of(shell: str) -> dict[str, str]:
    """Read the settings of lines NAME='value'."""
    return dict(word.partition("=")[::2] for word in shlex.split(shell))


@contextmanager
def _tree(directory: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "onward", "run", str(directory), "--port", "0"]
    with directory.with_suffix(".log").open("ab") as log:
        tree = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not (directory / "service.json").exists():
            if tree.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(directory.with_suffix(".log").read_text()[-4000:])
            time.sleep(0.5)
        yield tree
    finally:
        tree.terminate()
        tree.wait()


def _cores(root: int) -> dict[str, float]:
    """Return the processors that each part keeps busy, over `_MEASURED_S`."""
    before, began_s = _cpu_s(root), time.monotonic()
    time.sleep(_MEASURED_S)
    after, took_s = _cpu_s(root), time.monotonic() - began_s
    cores: defaultdict[str, float] = defaultdict(float)
    for process, spent_s in after.items():
        cores[process[1]] += (spent_s - before.get(process, 0.0)) / took_s
    return dict(cores)


def _cpu_s(root: int) -> dict[tuple[int, str], float]:
    """Return the processor time of our processes, by number and part."""
    parent = psutil.Process(root)
    found = {}
    for process in [parent, *parent.children(recursive=True)]:
        times, command = process.cpu_times(), process.cmdline()
        if str(PYTHON) != command[0] and "sglang" not in " ".join(command[:4]):
            found[process.pid, _part(command)] = times.user + times.system
    return found


def _part(command: list[str]) -> str:
    """Return a process's name in the tree; several of one kind have one name."""
    if "--child" in command:
        return command[command.index("--child") + 1].rstrip("0123456789").rstrip("-")
    return "tree" if "run" in command else Path(command[-1]).name


if __name__ == "__main__":
    main()
