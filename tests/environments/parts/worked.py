"""A task at work: the harness, the service and a sandbox, each the real one; the model alone is scripted."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from api_harness import MODEL, Service
from byte_renderer import END, call_ids, ids
from sandboxed import require_bubblewrap, shared_directory
from scripted_policy import Script

from environments.harness.agent import Agent, HarnessSettings
from environments.harness.harness import Budget, Endpoint, Harness, HarnessRun
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import Sandbox, SandboxSpec
from environments.tasks.task import Task

Call = tuple[str, dict[str, Any]]


def calling(*calls: Call, says: str = "") -> Script:
    """Return an answer that says something and makes calls, all at once."""
    made = [token for name, arguments in calls for token in call_ids(name, arguments)]
    return Script((*ids(says), *made, END), chunk_tokens=4096)


def saying(text: str) -> Script:
    return Script((*ids(text), END), chunk_tokens=4096)


def task_of(repository: Path, instruction: str = "Repair add.") -> Task:
    spec = SandboxSpec(workspace=repository)
    return Task("sums", instruction, "d1", spec, agent_timeout_seconds=60, verifier_timeout_seconds=60)


def endpoint_of(service: Service) -> Endpoint:
    return Endpoint(f"{service.url}/v1", model=MODEL)


def in_sandbox(spec: SandboxSpec, use: Callable[[Sandbox], Awaitable[Any]]) -> Any:
    """Open a sandbox, use it, and return what came of that; the test is skipped where sandboxes cannot be opened."""
    require_bubblewrap()

    async def run() -> Any:
        sandboxes = Bubblewrap(shared_directory())
        try:
            async with await sandboxes.open(spec) as sandbox:
                return await use(sandbox)
        finally:
            await sandboxes.close()

    return asyncio.run(run())


def work(
    service: Service,
    repository: Path,
    scripts: Sequence[Script],
    *,
    harness: Harness | None = None,
    budget: Budget | None = None,
    after: Callable[[Sandbox], Awaitable[Any]] | None = None,
    instruction: str = "Repair add.",
    **settings: Any,
) -> tuple[HarnessRun, Any]:
    """Have the scripts worked off, and return the work and what `after` made of the sandbox."""
    service.policy.scripts.extend(scripts)
    agent = harness or Agent(HarnessSettings(**{"answer_tokens": 200, "patience_seconds": 5, **settings}))
    task = task_of(repository, instruction)

    async def use(sandbox: Sandbox) -> tuple[HarnessRun, Any]:
        done = await agent.work(task, sandbox, endpoint_of(service), budget or Budget(context_tokens=60_000))
        return done, await after(sandbox) if after is not None else None

    found: tuple[HarnessRun, Any] = in_sandbox(task.spec, use)
    return found
