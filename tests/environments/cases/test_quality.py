"""Whose fault it is that files cannot be looked at; and looking at them ends when nobody waits any more."""

import asyncio
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from environments.cases.quality import flaws_of
from environments.cases.rules import Files, Most, Rules, added_lines, looked_at
from environments.errors import InfrastructureFailure
from environments.sandboxes.sandbox import CommandResult, SandboxSpec
from environments.tasks.task import Task

PATIENCE_S = 120.0
TWICE = Rules(duplicates=True)


class Folder:
    """A sandbox that is a folder of this machine; one of too many files cannot be listed."""

    def __init__(self, root: Path, files: dict[str, str], *, too_many: bool = False) -> None:
        self.root, self.too_many = root, too_many
        for name, text in files.items():
            path = root / name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    async def run(self, command: Any, **options: Any) -> CommandResult:
        ran = subprocess.run(command, cwd=self.root, capture_output=True, check=False)  # noqa: ASYNC221
        return CommandResult(ran.returncode, ran.stdout, ran.stderr, 0.0, 0.0, cut_bytes=int(self.too_many))

    async def read(self, path: str) -> bytes:
        return (self.root / path.removeprefix("/app/")).read_bytes()

    async def end_commands(self) -> None:
        pass

    async def open(self, spec: SandboxSpec) -> "Folder":
        return self

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> "Folder":
        return self

    async def __aexit__(self, *raised: object) -> None:
        pass


def flaws(worked: Folder, untouched: Folder, most: Most | None = None) -> tuple[str, ...]:
    task = Task("add", "", "", SandboxSpec(workdir="/app"), 600.0, 600.0)
    sandboxes: Any = untouched
    return asyncio.run(flaws_of(task, worked, sandboxes, TWICE, most))  # type: ignore[arg-type]


def of_tokens(seed: int) -> str:
    """Return a function that takes minutes to be compared with another of these."""
    drawn = random.Random(seed).choices("abcd", k=5_000)
    return "def f():\n" + "".join(f"    {name}()\n" for name in drawn)


def test_files_that_cannot_be_listed_are_the_tasks_fault_where_they_were_there(tmp_path: Path) -> None:
    few, many = Folder(tmp_path / "few", {"a.py": "a = 1\n"}), Folder(tmp_path / "many", {"a.py": ""}, too_many=True)
    (told,) = flaws(many, few)
    assert told == "what it left cannot be looked at: there are too many files here to read"
    for worked in (few, many):
        with pytest.raises(InfrastructureFailure, match="add has rules on its files, but there are too many"):
            flaws(worked, many)


def test_work_that_takes_too_long_to_compare_is_at_fault_and_a_task_that_does_is_not(tmp_path: Path) -> None:
    here = {"old.py": of_tokens(1)}
    untouched, worked = Folder(tmp_path / "old", here), Folder(tmp_path / "new", here | {"new.py": of_tokens(2)})
    assert flaws(worked, untouched, Most(seconds=1)) == ("what it left takes more than 1 s to compare",)
    large = Files({f"{number}.py": of_tokens(number) for number in range(60)}, {})
    with pytest.raises(InfrastructureFailure, match="what was there before the work takes more than 1 s to look at"):
        asyncio.run(looked_at(large, TWICE, Most(seconds=1)))
    with pytest.raises(InfrastructureFailure):
        flaws(worked, untouched, Most(memory_bytes=1 << 20))


def test_looking_ends_with_whoever_waits_for_it() -> None:
    files = Files({"old.py": of_tokens(1)}, {"old.py": of_tokens(1), "new.py": of_tokens(2)})
    me = psutil.Process()
    of_others = set(me.children())

    def begun() -> list[psutil.Process]:
        return [child for child in me.children() if child not in of_others]

    async def given_up() -> None:
        looking = asyncio.create_task(looked_at(files, TWICE, Most()))
        assert await asyncio.to_thread(in_time, begun)
        (child,) = begun()
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        assert not child.is_running()

    asyncio.run(given_up())


def in_time(holds: Callable[[], object]) -> object:
    until_s = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.01)
    return holds()


def test_a_file_whose_name_is_no_text_is_told_in_text(tmp_path: Path) -> None:
    helper = "def f(rows, out):\n    for row in rows:\n        out.write(row)\n    return out\n"
    worked = Folder(tmp_path / "new", {"old.py": helper, "n\udcff.py": helper})
    (told,) = flaws(worked, Folder(tmp_path / "old", {"old.py": helper}))
    assert told.startswith("n?.py:1 (f) says again what old.py:1 (f) says"), told
    assert told.encode()


@pytest.mark.parametrize(
    ("before", "after", "added"),
    [
        ({"a": "one\ntwo\n"}, {"a": "two\none\n"}, 0),
        ({"a": "one\ntwo\n"}, {"b": "one\ntwo\nthree"}, 1),
        ({"a": "one\n"}, {"a": "one\none\none\n"}, 2),
        ({"a": "one\n"}, {"a": "a\x0cpage\u2028break\n\n"}, 2),
        ({}, {"a": "1\0\n\n\n"}, 0),
        ({"a": "one\n"}, {}, 0),
    ],
    ids=["moved", "renamed", "repeated", "only line feeds end lines", "no text", "removed"],
)
def test_lines_that_were_not_there_are_counted(before: dict[str, str], after: dict[str, str], added: int) -> None:
    assert added_lines(Files(before, after)) == added
