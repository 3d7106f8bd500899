"""Runs a program of this machine, such as an engine or an installer, and returns what it wrote."""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO

from environments.errors import InfrastructureFailure

_TAIL_BYTES = 2_000


async def said(command: Sequence[str], timeout_seconds: float, part: str) -> str:
    """Return what a program wrote to its standard output.

    Raises InfrastructureFailure, of that part, where it is not there, fails, or takes too long; then all that it
    started is ended."""
    named = " ".join(command[:4])
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = _started(command, out, err)
        except FileNotFoundError as error:
            raise InfrastructureFailure(part, f"{command[0]} is not here") from error
        ending = asyncio.get_running_loop().run_in_executor(None, process.wait)
        try:
            await asyncio.wait_for(asyncio.shield(ending), timeout_seconds)
        except TimeoutError as error:
            raise InfrastructureFailure(part, f"{named} took more than {timeout_seconds:g} s") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                await ending
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            told = err.read()[-_TAIL_BYTES:].decode(errors="replace").strip()
            raise InfrastructureFailure(part, f"{named}: {told}")
        return out.read().decode()


def _started(command: Sequence[str], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program without pipes: asyncio's own processes hang where they are given up while pipes are made."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
