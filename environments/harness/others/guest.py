"""Harnesses of others: programs that run in the sandbox, unmodified, and work on the task in their own way.

What they cannot tell is not made up: their calls and groups are unknown, and the seconds on their critical path are all
those that the program took."""

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from environments.errors import InfrastructureFailure
from environments.harness.asker import SESSION, asker_headers
from environments.harness.harness import Budget, Ending, Endpoint, HarnessRun, UsedUp
from environments.harness.others.gateway import Gateway, Seen
from environments.sandboxes.sandbox import CommandResult, Sandbox
from environments.tasks.task import Task

SOCKETS: Final = "/run/onward"  # where the sandbox has the folder of gateways
_RELAY: Final = (Path(__file__).parent / "relay.py").read_text()
_PORTS: Final = (20_000, 60_000)  # of a sandbox, whose network is its own
_STARTS_WITHIN_SECONDS: Final = 10.0
_LOOKS_EVERY_SECONDS: Final = 0.2
_NOT_FOUND: Final = (126, 127)


@dataclass(frozen=True)
class Program:
    """How a program is run on a task.

    `command` makes the command of the service's URL (without /v1), the model's name and the task; `files` makes what it
    must find, by path; `environment` what its environment says beside the sandbox's own. `folders` are those of this
    machine that it needs, by their place inside. `python` runs the relay to the model."""

    name: str
    version: str
    command: Callable[[str, str, Task], list[str]]
    folders: Mapping[str, Path]
    files: Callable[[str, str], Mapping[str, str]] = lambda url, model: {}
    environment: Callable[[str], Mapping[str, str]] = lambda url: {}
    python: str = "python3"


class Guest:
    """A harness of others. It is to be closed: it keeps a folder of sockets."""

    def __init__(self, program: Program, workload: str = "agent") -> None:
        self._program, self._workload = program, workload
        self.name, self.version = program.name, program.version
        self._sockets = tempfile.TemporaryDirectory(prefix="onward-gateways-")
        Path(self._sockets.name).chmod(0o711)  # whoever does not know a socket's name does not find it
        self.folders: Mapping[str, Path] = {**program.folders, SOCKETS: Path(self._sockets.name)}

    def close(self) -> None:
        self._sockets.cleanup()

    async def work(self, task: Task, sandbox: Sandbox, endpoint: Endpoint, budget: Budget) -> HarnessRun:
        """Run the program in the sandbox, which must have `folders` (see `Harness`)."""
        headers = asker_headers(self, task, endpoint, self._workload)
        began = time.monotonic()
        async with aiohttp.ClientSession() as http:
            gateway = Gateway(endpoint, headers, http)
            async with gateway.listening(Path(self._sockets.name)) as name, self._relayed(sandbox, name) as url:
                ran = await self._run(task, sandbox, url, endpoint.model, budget, gateway.seen)
                if isinstance(ran, CommandResult) and ran.timed_out:
                    await gateway.require_service(self.name)
        ending, used_up = self._ended(ran, gateway.seen)
        turns = gateway.seen.turns
        return HarnessRun(
            ending=ending,
            used_up=used_up or _used_up(turns_tokens(gateway.seen), len(turns), budget),
            session_id=headers[SESSION] if turns else None,
            inference_ids=tuple(turn.inference_id for turn in turns),
            policy_versions=tuple(turn.policy_version for turn in turns),
            prompt_tokens=sum(turn.prompt_tokens for turn in turns),
            output_tokens=sum(turn.output_tokens for turn in turns),
            critical_path_seconds=time.monotonic() - began,
        )

    @contextlib.asynccontextmanager
    async def _relayed(self, sandbox: Sandbox, name: str) -> AsyncIterator[str]:
        """Run the relay in the sandbox, and yield the URL that leads to the model there."""
        port = random.randrange(*_PORTS)
        command = (self._program.python, "-c", _RELAY, str(port), f"{SOCKETS}/{name}")
        relay = asyncio.create_task(sandbox.run(command, timeout_seconds=86_400))
        try:
            await self._wait(sandbox, relay, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            relay.cancel()
            await asyncio.gather(relay, return_exceptions=True)

    async def _wait(self, sandbox: Sandbox, relay: "asyncio.Task[CommandResult]", port: int) -> None:
        """Wait until the relay listens. Raises InfrastructureFailure where it does not."""
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1).close()"
        deadline = time.monotonic() + _STARTS_WITHIN_SECONDS
        while not relay.done() and time.monotonic() < deadline:
            if (await sandbox.run((self._program.python, "-c", probe), timeout_seconds=5)).exit_code == 0:
                return
        said = relay.result().stderr[-500:].decode(errors="replace") if relay.done() else "it does not listen"
        raise InfrastructureFailure("sandbox", f"the way to the model cannot be laid: {said}")

    async def _run(
        self, task: Task, sandbox: Sandbox, url: str, model: str, budget: Budget, seen: Seen
    ) -> CommandResult | UsedUp:
        """Run the program to its end, or until the budget is used up."""
        for path, text in self._program.files(url, model).items():
            await sandbox.write(path, text.encode())
        running = asyncio.create_task(
            sandbox.run(
                self._program.command(url, model, task),
                timeout_seconds=budget.critical_path_seconds,
                workdir=task.spec.workdir,
                environment=self._program.environment(url),
            )
        )
        try:
            while not running.done():
                used_up = _used_up(turns_tokens(seen), len(seen.turns), budget)
                if used_up is not None:
                    return used_up
                await asyncio.wait([running], timeout=_LOOKS_EVERY_SECONDS)
            return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _ended(self, ran: CommandResult | UsedUp, seen: Seen) -> tuple[Ending, UsedUp | None]:
        """Return how the work ended. Raises InfrastructureFailure where it was not the model's doing."""
        said = (ran.stderr or ran.stdout)[-500:].decode(errors="replace") if isinstance(ran, CommandResult) else ""
        seen.require_answers(self.name, said)  # however the program took that: its work is not what it would have been
        if not isinstance(ran, CommandResult):
            return "budget", ran
        if ran.timed_out:
            return "budget", "seconds"
        if ran.exit_code in _NOT_FOUND and not seen.turns:
            raise InfrastructureFailure("sandbox", f"{self.name} does not start: {said}")
        if not seen.turns:
            raise InfrastructureFailure("harness", f"{self.name} ended with {ran.exit_code}: {said}")
        return "done", None


def turns_tokens(seen: Seen) -> int:
    """Return the tokens of the turns; of a prompt those that the one before did not have."""
    tokens = context = 0
    for turn in seen.turns:
        tokens += max(0, turn.prompt_tokens - context) + turn.output_tokens
        context = turn.prompt_tokens + turn.output_tokens
    return tokens


def _used_up(tokens: int, turns: int, budget: Budget) -> UsedUp | None:
    if tokens >= budget.tokens:
        return "tokens"
    return "calls" if turns >= budget.calls else None
