"""Runs a program of this machine, such as an engine or an installer, and returns what it wrote."""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO

from environments.errors import InfrastructureFailure

_TAIL_BYTES = 2_000


async def said(
    command: Sequence[str], timeout_seconds: float, part: str, given: bytes = b"", grace_seconds: float = 0.0
) -> str:
    """Return what a program wrote to its standard output; `given` is what its standard input holds.

    Raises InfrastructureFailure, of that part, where it is not there, fails, or takes too long; then all that it
    started is ended. A program that is given grace is interrupted first, and has so long to end what it began."""
    named = " ".join(command[:4])
    with tempfile.TemporaryFile() as into, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        into.write(given)
        into.seek(0)
        try:
            process = _started(command, into, out, err)
        except FileNotFoundError as error:
            raise InfrastructureFailure(part, f"{command[0]} is not here") from error
        ending = asyncio.get_running_loop().run_in_executor(None, process.wait)
        try:
            await asyncio.wait_for(asyncio.shield(ending), timeout_seconds)
        except TimeoutError as error:
            raise InfrastructureFailure(part, f"{named} took more than {timeout_seconds:g} s") from error
        finally:
            await _ended(process, ending, grace_seconds)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            told = err.read()[-_TAIL_BYTES:].decode(errors="replace").strip()
            raise InfrastructureFailure(part, f"{named}: {told}")
        return out.read().decode()


def _started(command: Sequence[str], into: IO[bytes], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program without pipes: asyncio's own processes hang where they are given up while pipes are made."""
    return subprocess.Popen(command, stdin=into, stdout=out, stderr=err, start_new_session=True)


async def _ended(process: subprocess.Popen[bytes], ending: "asyncio.Future[int]", grace_seconds: float) -> None:
    """End a program that still runs, with what is in its session, and wait until it has."""
    try:
        if process.poll() is None and grace_seconds:
            _signalled(process, signal.SIGINT)
            await asyncio.wait([ending], timeout=grace_seconds)
    finally:
        if process.poll() is None:
            _signalled(process, signal.SIGKILL)
        await ending


def _signalled(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended in the very moment
        os.killpg(process.pid, number)
