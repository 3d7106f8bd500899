"""A harness that asks no model: it runs the task's own solution, to see whether all else works."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from environments.errors import InfrastructureFailure, TaskError
from environments.harness.harness import Budget, Endpoint, HarnessRun
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.solving import solve
from environments.tasks.task import Task


class Oracle:
    """The task's author at work. Its episodes have no turns, so nothing is learned from them."""

    name, version = "oracle", "1"
    folders: Mapping[str, Path] = MappingProxyType({})

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> HarnessRun:
        """Run `solution/solve.sh`. Raises InfrastructureFailure where the task has none, or it fails."""
        if task.solution is None:
            raise InfrastructureFailure("image", f"{task.name} has no solution/solve.sh")
        try:
            await solve(task, sandbox)
        except TaskError as error:
            raise InfrastructureFailure("image", str(error)) from error
        return HarnessRun("done", endpoint.headers.get("x-session-id"), (), ())
