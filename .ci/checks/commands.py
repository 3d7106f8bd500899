"""Runs one command in a process group of its own, so that whatever it started ends with it."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_GRACE_S = 60
TIMED_OUT = 124


class Command:
    """A shell command that has been started; its output goes to a log, or to ours."""

    def __init__(self, command: str, environment: Mapping[str, str], log: Path | None = None) -> None:
        self._log = log.open("wb") if log else None
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT if self._log else None,
            start_new_session=True,
        )

    def wait(self, limit_s: float) -> int:
        """Return the exit status; 124 if it had to be ended after this many seconds."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.end()
            return TIMED_OUT
        finally:
            if self._log:
                self._log.close()

    def end(self) -> None:
        """Interrupt the whole group, as ^C does, and kill what is left of it a minute later."""
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)


def run(command: str, limit_s: float, environment: Mapping[str, str] | None = None) -> int:
    """Run a command to its end or to the limit, and return its exit status."""
    started = Command(command, environment or {})
    try:
        return started.wait(limit_s)
    except BaseException:  # whoever ends us ends it, too
        started.end()
        raise
