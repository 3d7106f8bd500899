"""Runs a task's own solution in its sandbox, in an agent's stead."""

from environments.errors import TaskError
from environments.sandboxes.sandbox import Sandbox
from environments.tasks.task import Task

_TAIL_BYTES = 1_000


async def solve(task: Task, sandbox: Sandbox) -> None:
    """Do what the task asks for. Raises TaskError where its solution does not end well."""
    assert task.solution is not None, "who asks has looked"
    await sandbox.copy_in(task.solution, "/solution")
    result = await sandbox.run(
        ("/bin/sh", "-c", "chmod +x /solution/solve.sh && exec /solution/solve.sh"),
        timeout_seconds=task.agent_timeout_seconds,
        workdir=task.spec.workdir,
        environment=task.solution_environment,
    )
    if result.exit_code != 0:
        said = (result.stdout + result.stderr)[-_TAIL_BYTES:].decode(errors="replace").strip()
        raise TaskError(f"its solution ends with exit code {result.exit_code}: {said}")
