"""Environments of `verifiers` (0.4.0), in an interpreter of their own: it needs a newer `openai` than ours may be.

The environment makes its rollouts itself, with its own harness, tools and users, of one turn or many; only the model is
ours, asked over HTTP. What it says of a rollout is the reward of the task."""

import asyncio
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from blake3 import blake3

from environments.errors import InfrastructureFailure, TaskError
from environments.sandboxes.sandbox import SandboxSpec
from environments.tasks.public.interpreters import interpreter, uv_program
from environments.tasks.task import Task

_LOCK = Path(__file__).with_name("verifiers.lock")
_WORKER = Path(__file__).with_name("verifiers_worker.py")
_LINE_BYTES = 1 << 26
_TAIL_BYTES = 2_000


@dataclass(frozen=True)
class Wanted:
    """Which environment is wanted, and how. `environment` is what `verifiers` reads as `[env]`.

    `paths` are folders where its module is found, beside what is installed."""

    name: str
    environment: Mapping[str, Any]
    most_tasks: int = 100
    paths: tuple[Path, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    agent_timeout_seconds: float = 600.0


@dataclass(frozen=True)
class RolledOut:
    """How one rollout of an environment ended. Tokens are those that the provider reported.

    `late`: its own time was over; `reward` is then None where the environment did not come to judge what there was."""

    reward: float | None
    rewards: Mapping[str, float]
    turns: int
    prompt_tokens: int
    output_tokens: int
    late: bool


class VerifiersEnvironment:
    """One environment, loaded in a process that lives until this is closed."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: "_Output", log: Path, tasks: Sequence[Task]
    ) -> None:
        """Take a process that has told of its tasks; `start` makes one."""
        self.tasks = tuple(tasks)
        self._process, self._output, self._log = process, output, log
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, wanted: Wanted, folder: Path, *, python: Path | None = None) -> "VerifiersEnvironment":
        """Load an environment. `python` has `verifiers` installed; without one, an interpreter is made below `folder`.

        Raises TaskError where the environment cannot be loaded, with the end of what its process wrote."""
        program = python or await interpreter(folder / "interpreters", _LOCK)
        log = folder / f"verifiers-{wanted.name.replace('/', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        first = {"environment": wanted.environment, "sampling": wanted.sampling, "most_tasks": wanted.most_tasks}
        async with AsyncExitStack() as unless_loaded:
            output, given = await _Output.opened()
            unless_loaded.callback(output.close)
            with given, log.open("wb") as file:
                process = await asyncio.create_subprocess_exec(
                    *(str(program), str(_WORKER)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=given,
                    stderr=file,
                    env=_variables(wanted),
                )
            unless_loaded.push_async_callback(_end, process)
            told = await _asked(process, output, first)
            if told is None:
                raise TaskError(f"{wanted.name} cannot be loaded: {_tail(log)}")
            tasks = [_task(wanted, number, each) for number, each in enumerate(told["tasks"])]
            unless_loaded.pop_all()
        return cls(process, output, log, tasks)

    @property
    def has_ended(self) -> bool:
        """Whether its process is no longer there, or says no more: it makes no more rollouts."""
        return self._process.returncode is not None or self._reading.done()

    async def roll_out(self, task: Task, *, base_url: str, model: str) -> RolledOut:
        """Let the environment make one rollout of a task with the model at `base_url`.

        Raises InfrastructureFailure, with part `service`, where it ends with an error: none of its errors is a
        reward."""
        if self._reading.done():  # nobody would hear the answer
            raise self._silent()
        number = str(next(self._ids))
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        asked = {"id": number, "index": task.metadata["index"], "base_url": base_url, "model": model}
        try:
            await _send(self._process, asked)
            told = await answer
        except asyncio.CancelledError:
            await _send(self._process, {"id": number, "ends": True})
            raise
        finally:
            del self._waiting[number]
        if "error" in told:
            raise InfrastructureFailure("service", f"{task.name}: {told['error']}")
        return RolledOut(**{name: told[name] for name in RolledOut.__dataclass_fields__})

    async def close(self) -> None:
        """End the process, and what it runs. Closing twice is harmless.

        A process that it left behind may keep the pipe of its output open, for whose end nobody waits."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 20)
        except TimeoutError:
            self._process.kill()
        await self._process.wait()
        self._output.close()
        await self._reading

    async def _read(self) -> None:
        """Hand out answers until the output ends. However this ends, nobody goes on waiting."""
        try:
            while (told := await self._output.next("id")) is not None:
                number = told["id"]
                waiting = self._waiting.get(number) if isinstance(number, str) else None
                if waiting is not None and not waiting.done():  # who asked may have given up
                    waiting.set_result(told)
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(self._silent())

    def _silent(self) -> InfrastructureFailure:
        return InfrastructureFailure("service", f"its process ended, or says no more: {_tail(self._log)}")


class _Output:
    """What the process says, by a pipe of ours: the end of the process is waited for without that of its output."""

    def __init__(self, lines: asyncio.StreamReader, pipe: asyncio.BaseTransport) -> None:
        self._lines, self._pipe = lines, pipe

    @classmethod
    async def opened(cls) -> tuple["_Output", IO[bytes]]:
        """Return one, and the file that the process is to write to, which the caller closes."""
        reads, writes = os.pipe()
        lines = asyncio.StreamReader(limit=_LINE_BYTES)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reads, "rb")
        )
        return cls(lines, pipe), os.fdopen(writes, "wb")

    async def next(self, named: str) -> dict[str, Any] | None:
        """Return the next message that names something, None at the end; other lines are not ours, and passed over."""
        while True:
            try:
                line = await self._lines.readline()
                if not line:
                    return None
                told = json.loads(line)
            except (ValueError, RecursionError):  # longer than a line may be, no JSON, or JSON without an end
                continue
            if isinstance(told, dict) and named in told:
                return told

    def close(self) -> None:
        """Hear no more of it."""
        self._pipe.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        process.kill()
    await process.wait()


def _task(wanted: Wanted, index: int, told: Mapping[str, Any]) -> Task:
    said = json.dumps([wanted.name, dict(wanted.environment), index, told], sort_keys=True, default=str)
    return Task(
        name=f"verifiers/{wanted.name}/{index}",
        instruction=told["prompt"],
        digest=str(blake3(said.encode()).hexdigest()),
        spec=SandboxSpec(),
        agent_timeout_seconds=wanted.agent_timeout_seconds,
        verifier_timeout_seconds=60.0,
        metadata={"library": "verifiers", "environment": wanted.name, "index": index, "title": told["name"]},
    )


def _variables(wanted: Wanted) -> dict[str, str]:
    """Return what the process is told: where its modules and uv are, and nothing else of this machine."""
    paths = os.pathsep.join(str(path) for path in wanted.paths)
    uv = uv_program()  # by which verifiers starts its harnesses
    beside = [str(Path(uv).parent)] if uv is not None else []
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE") if name in os.environ
    }
    kept["PATH"] = os.pathsep.join([*beside, kept.get("PATH", os.defpath)])
    return {**kept, "PYTHONPATH": paths, "ONWARD_API_KEY": "none"}


async def _asked(
    process: asyncio.subprocess.Process, output: _Output, message: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the tasks in answer to a message, None where the process has ended."""
    try:
        await _send(process, message)
    except InfrastructureFailure:
        return None
    return await output.next("tasks")


async def _send(process: asyncio.subprocess.Process, message: Mapping[str, Any]) -> None:
    assert process.stdin is not None, "its input is a pipe"
    try:
        process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError) as error:
        raise InfrastructureFailure("service", f"the process of verifiers ended: {error}") from error


def _tail(log: Path) -> str:
    return log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
