"""The building of what a suite's tasks are worked on with, where it has any."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import from_extra
from core.settings import Settings
from onward.directory.layout import Layout

if TYPE_CHECKING:
    from onward.wiring.evals.task_cases import TaskCases
    from serving.evals.cases import Suite


def build_task_cases(
    suite: "Suite", kept: Path, images: Mapping[str, str], *, allowed: bool, asked_by: str
) -> "TaskCases | None":
    """Return what a suite's tasks are worked on with; None where it has none, or commands are not allowed.

    `asked_by` is the setting or option that names the suite. Raises ConfigError naming the case at fault, or what this
    machine lacks for sandboxes."""
    if not suite.tasks or not allowed:
        return None
    with from_extra("environments", asked_by):
        from onward.wiring.evals.task_cases import TaskCases
    tasks = TaskCases(suite, kept, images)
    with ThreadPoolExecutor(1) as apart:  # this thread may have an event loop already
        apart.submit(asyncio.run, tasks.require()).result()
    return tasks


def build_task_cases_of_service(
    suite: "Suite", layout: Layout, settings: Settings, *, allowed: bool, asked_by: str
) -> "TaskCases | None":
    """Return the same for a service: its images are those of its rollouts. Raises ConfigError."""
    rollouts = settings.rollouts
    kept = rollouts.prepared or layout.rollouts
    return build_task_cases(suite, kept, rollouts.images, allowed=allowed, asked_by=asked_by)
