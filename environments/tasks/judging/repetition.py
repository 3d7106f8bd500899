"""Judges work by the task's tests and by what it repeats: a patch that writes a helper again that the repository had.

Tests see what a program does, and not that it does it twice. Where they give a reward, new functions are compared with
those that were there (see `duplication`), and half of the reward is lost where one repeats another."""

import logging
from dataclasses import dataclass
from functools import lru_cache

from environments.errors import NoVerdict
from environments.sandboxes.sandbox import Sandbox, Sandboxes
from environments.tasks.judging.duplication import Duplicate, duplicates
from environments.tasks.opening import open_sandbox
from environments.tasks.task import Task
from environments.tasks.verifying import verify

COST = 0.5
"""The share of the reward that is left once something is repeated, however much it is."""
_MOST_FILES = 2000
_MOST_BYTES = 200_000  # of one file
_SECONDS = 30.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Judged:
    """`reward` is that of the tests, less what repeating costs; `repeats` are the functions that did."""

    reward: float
    repeats: tuple[Duplicate, ...] = ()


async def judge(task: Task, sandbox: Sandbox, sandboxes: Sandboxes) -> Judged:
    """Judge what lies in an agent's sandbox; work that made itself impossible to compare is worth nothing.

    Where what was there before cannot be compared either, that is the task's doing, and the tests alone decide. Raises
    as `verify` does."""
    try:
        after = await sources(sandbox, task.spec.workdir)
    except NoVerdict:
        after = None
    reward = (await verify(task, sandbox, sandboxes)).reward
    if reward <= 0:
        return Judged(reward)
    async with await open_sandbox(task, sandboxes) as untouched:
        try:
            before = await sources(untouched, task.spec.workdir)
        except NoVerdict as none:
            _tell_once(task.name, str(none))
            return Judged(reward)
    if after is None:  # and what was there before could be compared
        return Judged(0.0)
    if before == after:
        return Judged(reward)
    repeats = tuple(duplicates(before, after))
    return Judged(reward * COST if repeats else reward, repeats)


@lru_cache(maxsize=1000)  # what was said, so that not each attempt says it again
def _tell_once(task: str, why: str) -> None:
    logger.warning("%s: judged by its tests alone, and not by what it repeats: %s", task, why)


async def sources(sandbox: Sandbox, workdir: str) -> dict[str, str]:
    """Return the Python files of a working copy by their paths in it; those of hidden folders are not its own.

    Raises NoVerdict where they cannot be listed, or are too many to compare."""
    found = await sandbox.run(
        (
            "find",
            ".",
            "-name",
            ".?*",
            "-prune",
            "-o",
            "-type",
            "f",
            "-name",
            "*.py",
            "-size",
            f"-{_MOST_BYTES}c",
            "-print0",
        ),
        timeout_seconds=_SECONDS,
        workdir=workdir,
    )
    names = [name for name in found.stdout.decode(errors="replace").split("\0") if name]
    if found.timed_out or found.cut_bytes or len(names) > _MOST_FILES:
        raise NoVerdict(f"{workdir}: its Python files cannot be compared ({len(names)} found)")
    read = {}
    for name in names:
        try:
            read[name] = (await sandbox.read(f"{workdir}/{name}")).decode()
        except (UnicodeDecodeError, OSError):  # no source that anybody could repeat
            continue
    return read
