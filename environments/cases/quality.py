"""What is asked of work beside its tests: that it says nothing twice, and adds no more than it has to.

The files are those that the agent left, as they are before the tests see them; what was there before is seen in a
sandbox of the task in which nobody has worked."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from environments.cases.duplicates import duplicates
from environments.errors import InfrastructureFailure
from environments.harness.tools.reading import Room, Unreadable, digests, source
from environments.harness.tools.tool import Bench
from environments.sandboxes.sandbox import Sandbox, Sandboxes
from environments.tasks.opening import open_sandbox
from environments.tasks.task import Task

_NO_TEXT = "\0"  # in a file that is none, such as a compiled one


@dataclass(frozen=True)
class Rules:
    """What the files must be like. `most_added_lines` counts as `git diff --numstat` does."""

    duplicates: bool = False
    most_added_lines: int | None = None


@dataclass(frozen=True)
class Files:
    """The texts of a working copy's files, by their paths: those that the work changed, and all that rules compare."""

    before: Mapping[str, str]
    after: Mapping[str, str]


async def flaws_of(task: Task, sandbox: Sandbox, sandboxes: Sandboxes, rules: Rules) -> tuple[str, ...]:
    """Return, in words, what of the rules the work in a sandbox does not keep.

    Raises InfrastructureFailure where a sandbox fails, or the task's own files cannot be read."""
    if not task.hooks:  # else these decide when what the agent started comes to its end
        await sandbox.end_commands()
    try:
        files = await _files(task, sandbox, sandboxes, rules)
    except Unreadable as error:
        return (f"what it left cannot be looked at: {error}",)
    return await asyncio.to_thread(_flaws, files, rules)


async def _files(task: Task, sandbox: Sandbox, sandboxes: Sandboxes, rules: Rules) -> Files:
    """Read both. Raises Unreadable for what the agent left alone."""
    worked = Bench(sandbox, task.spec.workdir)
    new = await digests(worked)
    async with await open_sandbox(task, sandboxes) as untouched:
        bench = Bench(untouched, task.spec.workdir)
        try:
            old = await digests(bench)
            compared = {path for path in old if rules.duplicates and path.endswith(".py")}
            changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
            before = await _texts(bench, (changed | compared) & old.keys())
        except Unreadable as error:
            raise InfrastructureFailure("verifier", f"{task.name} has rules on its files, but {error}") from error
    same = {path: before[path] for path in compared if old[path] == new.get(path)}
    return Files(before, same | await _texts(worked, changed & new.keys()))


async def _texts(bench: Bench, paths: set[str]) -> dict[str, str]:
    room, listed = Room(), sorted(paths)
    return dict(zip(listed, await asyncio.gather(*(source(bench, path, room) for path in listed)), strict=True))


def _flaws(files: Files, rules: Rules) -> tuple[str, ...]:
    found: list[str] = []
    if rules.duplicates:
        found += duplicates(_python(files.before), _python(files.after))
    added = sum(_added(files.before.get(path, ""), text) for path, text in files.after.items())
    if rules.most_added_lines is not None and added > rules.most_added_lines:
        found.append(f"it adds {added} lines, and {rules.most_added_lines} are allowed")
    return tuple(found)


def _python(files: Mapping[str, str]) -> dict[str, str]:
    return {path: text for path, text in files.items() if path.endswith(".py")}


def _added(before: str, after: str) -> int:
    """Return how many lines a file has that it did not have; 0 for what is no text."""
    if before == after or _NO_TEXT in after:
        return 0
    matcher = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return sum(end - start for kind, _, _, start, end in matcher.get_opcodes() if kind in ("insert", "replace"))
