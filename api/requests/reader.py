"""The process that does the jobs of reading large bodies, one at a time.

A thread would not do: making a million objects, or tokens, keeps the interpreter to itself for seconds. The process
starts with the first job, and is given up (another then starts) when a job takes too long or the process grew too
large."""

import asyncio
import resource
import struct
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from typing import IO, Protocol, TypeVar

from api.http.background import to_its_end
from api.http.body_shape import Raw
from api.requests.jobs import Job, JobRefused, Result, decode_job, decode_result, encode_job, encode_result, perform
from core.errors import TooLarge, Unavailable
from core.ports import Renderer

T = TypeVar("T")
_ASKED = struct.Struct("<II")  # lengths of the job and of the body with it
_ANSWERED = struct.Struct("<IB")  # length; whether it is the process's last
_PIECE = 256 << 10
_START_S = 60.0
_GROWN_KIB = 256 << 10
READY = b"\1"


class BodyReader(Protocol):
    async def ask(self, job: Job, body: Raw = b"") -> tuple[int, ...]:
        """Do a job and return the tokens that it makes, if any. Raises RequestError as the job does, Unavailable."""
        ...

    async def away(self, work: Callable[[], T]) -> T:
        """Run long Python code on a thread, after the jobs that were asked for before."""
        ...

    async def aclose(self) -> None: ...


class ThreadReader:
    """A reader in this process, for where there is no other."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._one = asyncio.Lock()

    async def ask(self, job: Job, body: Raw = b"") -> tuple[int, ...]:
        return _tokens(await self.away(lambda: perform(job, bytes(body), self._renderer)))

    async def away(self, work: Callable[[], T]) -> T:
        async with self._one:
            return await to_its_end(asyncio.to_thread(work))

    async def aclose(self) -> None:
        """Do nothing: there is no process to end."""


class ProcessReader:
    """A reader in another process: `command` starts one that does `serve_jobs` on its standard input and output."""

    def __init__(self, command: Sequence[str], work_s: float) -> None:
        self._command = command
        self._work_s = work_s
        self._one = asyncio.Lock()
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def away(self, work: Callable[[], T]) -> T:
        async with self._one:
            return await to_its_end(asyncio.to_thread(work))

    async def ask(self, job: Job, body: Raw = b"") -> tuple[int, ...]:
        async with self._one:
            return _tokens(await to_its_end(self._asked(job, body)))

    async def _asked(self, job: Job, body: Raw) -> Result:
        process = await self._started()
        whole = False
        try:
            result, is_last = await asyncio.wait_for(_exchange(process, encode_job(job), body), self._work_s)
            whole = not is_last
        except TimeoutError:
            raise TooLarge(
                f"reading the body takes longer than {self._work_s:g} s", code="body_takes_too_long"
            ) from None
        except (asyncio.IncompleteReadError, OSError):
            raise Unavailable("the process that reads large bodies has ended; another starts") from None
        finally:
            if not whole:  # its next answer would belong to this job and not to the next
                await self._give_up()
        return result

    async def aclose(self) -> None:
        async with self._one:
            await self._give_up()

    async def _started(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
        assert self._process.stdout is not None
        try:
            await asyncio.wait_for(self._process.stdout.readexactly(len(READY)), _START_S)
        except (TimeoutError, asyncio.IncompleteReadError):
            await self._give_up()
            raise Unavailable("the process that reads large bodies does not start") from None
        return self._process

    async def _give_up(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


async def _exchange(process: Process, job: bytes, body: Raw) -> tuple[Result, bool]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(_ASKED.pack(len(job), len(body)))
    for data in (job, body):
        for start in range(0, len(data), _PIECE):  # data that is written whole would be copied whole
            process.stdin.write(data[start : start + _PIECE])
            await process.stdin.drain()
    size, is_last = _ANSWERED.unpack(await process.stdout.readexactly(_ANSWERED.size))
    return decode_result(await process.stdout.readexactly(size)), bool(is_last)


def _tokens(result: Result) -> tuple[int, ...]:
    if isinstance(result, JobRefused):
        raise result.error()
    return result.token_ids


def serve_jobs(source: IO[bytes], sink: IO[bytes], renderer: Renderer) -> None:
    """Do jobs from `source`, in the other process, until it ends or this process has grown too large."""
    _say(sink, READY)
    before = _most_memory_kib()
    while len(head := source.read(_ASKED.size)) == _ASKED.size:
        job_size, body_size = _ASKED.unpack(head)
        job = decode_job(source.read(job_size))
        result = encode_result(perform(job, source.read(body_size), renderer))
        is_last = _most_memory_kib() - before > _GROWN_KIB
        _say(sink, _ANSWERED.pack(len(result), is_last) + result)
        if is_last:
            return


def _say(sink: IO[bytes], data: bytes) -> None:
    sink.write(data)
    sink.flush()


def _most_memory_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
