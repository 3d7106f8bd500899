"""Checking answers by a command of the operator's, within bounds (see `bounded`).

For suites whose checkers are code, or run the answer's. Nothing of it runs unless an operator allows it."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from serving.evals.cases import CannotRun

_BOUNDED = Path(__file__).with_name("bounded.py")
_NOT_FOUND = 127  # as a shell says it
_PATH = "/usr/local/bin:/usr/bin:/bin"


async def accepts(argv: Sequence[str], answer: str, timeout_s: float) -> bool:
    """Return whether the command ends with status 0 in time.

    It gets the answer on standard input, an empty directory of its own, and almost nothing of the environment. Raises
    CannotRun when the command is missing."""
    with tempfile.TemporaryDirectory(prefix="eval-", ignore_cleanup_errors=True) as directory:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_BOUNDED), str(max(1, round(timeout_s))), *argv),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=directory,
            env={"PATH": _PATH, "HOME": directory, "TMPDIR": directory, "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                await process.communicate(answer.encode(errors="surrogatepass"))
        except TimeoutError:
            return False
        finally:
            _end(process)
            await process.wait()
    if process.returncode == _NOT_FOUND:
        raise CannotRun(f"its checker {argv[0]}: not found, or cannot be run")
    return process.returncode == 0


def _end(process: asyncio.subprocess.Process) -> None:
    """End a process with everything that it started in its session, also when it ended before that."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
