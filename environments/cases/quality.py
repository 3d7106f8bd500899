"""What is asked of work beside its tests: that it says nothing twice, and adds no more than it has to.

The files are those that the agent left, as they are before the tests see them; what was there before is seen in a
sandbox of the task in which nobody has worked."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from environments.cases.rules import Files, Most, Rules, looked_at
from environments.errors import InfrastructureFailure
from environments.harness.tools.reading import Room, Unreadable, digests, source
from environments.harness.tools.tool import Bench
from environments.sandboxes.sandbox import Sandbox, Sandboxes
from environments.tasks.opening import open_sandbox
from environments.tasks.task import Task


async def flaws_of(
    task: Task, sandbox: Sandbox, sandboxes: Sandboxes, rules: Rules, most: Most | None = None
) -> tuple[str, ...]:
    """Return, in words, what of the rules the work in a sandbox does not keep.

    Raises InfrastructureFailure where a sandbox fails, or the task's own files cannot be read or looked at."""
    if not task.hooks:  # else these decide when what the agent started comes to its end
        await sandbox.end_commands()
    try:
        files = await _files(task, sandbox, sandboxes, rules)
    except Unreadable as error:
        return (f"what it left cannot be looked at: {error}",)
    found = await looked_at(files, rules, most or Most())
    return tuple(flaw.encode(errors="replace").decode() for flaw in found)  # names of files may be no text at all


async def _files(task: Task, sandbox: Sandbox, sandboxes: Sandboxes, rules: Rules) -> Files:
    """Read both, what was there first. Raises Unreadable for what the agent left alone."""
    worked, room = Bench(sandbox, task.spec.workdir), Room()
    async with await open_sandbox(task, sandboxes) as untouched:
        bench = Bench(untouched, task.spec.workdir)
        with _of_the_task(task):
            old = await digests(bench)
            compared = {path for path in old if rules.duplicates and path.endswith(".py")}
            before = await _texts(bench, compared, room)
        new = await digests(worked)
        changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        before |= await _texts(bench, changed & old.keys() - compared, room)
    same = {path: before[path] for path in compared if old[path] == new.get(path)}
    return Files(before, same | await _texts(worked, changed & new.keys(), Room()))


@contextmanager
def _of_the_task(task: Task) -> Iterator[None]:
    """Raise InfrastructureFailure for files that cannot be read, and that no agent has seen."""
    try:
        yield
    except Unreadable as error:
        raise InfrastructureFailure("verifier", f"{task.name} has rules on its files, but {error}") from error


async def _texts(bench: Bench, paths: set[str], room: Room) -> dict[str, str]:
    listed = sorted(paths)
    return dict(zip(listed, await asyncio.gather(*(source(bench, path, room) for path in listed)), strict=True))
