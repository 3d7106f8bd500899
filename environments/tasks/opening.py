"""Opens the sandbox of a task, and waits until what the task starts in it is well."""

import asyncio
import time
from contextlib import AsyncExitStack

from environments.errors import InfrastructureFailure
from environments.sandboxes.sandbox import Sandbox, Sandboxes
from environments.tasks.task import Healthcheck, Task


async def open_sandbox(task: Task, sandboxes: Sandboxes) -> Sandbox:
    """Return a sandbox in which an agent can begin with a task.

    Raises InfrastructureFailure, with part `service` where the task's health check does not succeed."""
    async with AsyncExitStack() as unless_well:
        sandbox = await unless_well.enter_async_context(await sandboxes.open(task.spec))
        if task.healthcheck is not None:
            await _healthy(task.healthcheck, sandbox, task.spec.workdir)
        unless_well.pop_all()
    return sandbox


async def _healthy(check: Healthcheck, sandbox: Sandbox, workdir: str) -> None:
    began, failures = time.monotonic(), 0
    while True:
        command = ("/bin/sh", "-c", check.command)
        result = await sandbox.run(command, timeout_seconds=check.timeout_seconds, workdir=workdir)
        if result.exit_code == 0 and not result.timed_out:
            return
        starting = time.monotonic() - began < check.start_period_seconds
        failures += 0 if starting else 1
        if failures >= check.retries:
            said = (result.stdout + result.stderr)[-500:].decode(errors="replace").strip()
            raise InfrastructureFailure(
                "service", f"the health check {check.command!r} failed {failures} times: {said}"
            )
        await asyncio.sleep(check.start_interval_seconds if starting else check.interval_seconds)
