"""Writes `fix` tasks as folders in Harbor's format, so that rollouts work on them in sandboxes of their own.

`python -m simulator.tasks.folders DIR [--count 96] [--held-out 48] [--seed 0]` writes DIR/taught and DIR/held-out. Both
are of the served split, and no request is in both, nor twice. The file lies in /app beside `tests.py`, which an agent
may run and change; what judges has the same cases, and comes once the agent is done."""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

from simulator.tasks.sampling import Task, identity, sample_task

_SETTINGS = """\
schema_version = "1.4"

[agent]
timeout_sec = 180.0

[verifier]
timeout_sec = 60.0

[environment]
network_mode = "no-network"
cpus = 1
memory_mb = 256
storage_mb = 64
"""
_DOCKERFILE = """\
FROM python:3.11-slim
WORKDIR /app
COPY {function}.py tests.py ./
"""
_TESTS = """\
import sys

sys.path.append("/app")
from {function} import {function}

for found, expected in (
{cases}
):
    assert repr(found) == expected, f"{{found!r}} is not {{expected}}"
"""
# A process of its own has the function, and what it should give stays here: an end of that process is no pass.
_JUDGE = """\
import subprocess
import sys

CASES = (
{cases}
)
code = "import sys; sys.path.append('/app'); from {function} import {function}\\n"
code += "".join(f"print(repr({{expression}}))\\n" for expression, _ in CASES)
told = subprocess.run((sys.executable, "-I", "-B", "-c", code), stdout=subprocess.PIPE, text=True)
sys.exit(told.stdout.splitlines() != [expected for _, expected in CASES])
"""
# Seconds are the processor's, so that a busy machine makes no verdict and an endless loop does.
_JUDGES = """\
#!/bin/sh
ulimit -S -t 10
python3 -I -B /tests/judge.py
case $? in
  0) echo 1 >/logs/verifier/reward.txt ;;
  1) echo 0 >/logs/verifier/reward.txt ;;
esac
"""
_SOLUTION = """\
#!/bin/sh
cat >/app/{function}.py <<'END'
{code}
END
"""


_ORDER = 'Call edit_file with {{"line": {line}, "text": {text}}}, then call done with {{}}.\n'


def write_folder(task: Task, place: Path, *, is_told: bool = False) -> None:
    """Write a `fix` task to `place`, which is made.

    `is_told`: the instruction does not say what is wrong, but the calls that mend it."""
    order = _ORDER.format(line=task.bug_line, text=json.dumps(task.correct_line))
    cases = "\n".join(f"    ({expression}, {expected!r})," for expression, expected in task.tests)
    judged = "\n".join(f"    ({expression!r}, {expected!r})," for expression, expected in task.tests)
    right = list(task.source_lines)
    right[task.bug_line - 1] = task.correct_line
    files = {
        "task.toml": _SETTINGS,
        "instruction.md": order if is_told else task.request,
        "environment/Dockerfile": _DOCKERFILE.format(function=task.function),
        f"environment/{task.function}.py": _text(task.source_lines),
        "environment/tests.py": _TESTS.format(function=task.function, cases=cases),
        "tests/test.sh": _JUDGES,
        "tests/judge.py": _JUDGE.format(function=task.function, cases=judged),
        "solution/solve.sh": _SOLUTION.format(function=task.function, code="\n".join(right)),
    }
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)


def fix_tasks(count: int, seed: int) -> list[Task]:
    """Draw so many `fix` tasks, no two with the same request."""
    rng, drawn = random.Random(f"folders {seed}"), dict[str, Task]()
    while len(drawn) < count:
        task = sample_task(rng, "fix")
        drawn.setdefault(identity(task), task)
    return list(drawn.values())


def write_folders(directory: Path, *, taught: int, held_out: int, seed: int, is_told: bool = False) -> None:
    """Write `directory`/taught and `directory`/held-out, of so many tasks each (`is_told`: see `write_folder`)."""
    tasks = fix_tasks(taught + held_out, seed)
    for name, some in (("taught", tasks[:taught]), ("held-out", tasks[taught:])):
        for task in some:
            write_folder(task, directory / name / task.task_id, is_told=is_told)


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--held-out", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    write_folders(asked.directory, taught=asked.count, held_out=asked.held_out, seed=asked.seed)


if __name__ == "__main__":
    main()
