"""The supervisor of the service's child processes, which keeps them going and knows how they are."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from core import telemetry
from core.records.handling import failure_of
from core.settings import StageSettings
from core.stages.backoff import Restarts
from core.stages.runner import cause_of
from core.stages.stage import OK

_PR_SET_PDEATHSIG = 1
# Found here and not after the fork, when another thread may have held the linker's lock for good.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_OF_CHILDREN = {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
_SHOW_S = 5.0  # at SIGABRT a child writes what its threads are doing
logger = logging.getLogger(__name__)


class ChildProcess:
    """A stage as a process of its own, started again when it dies, and ended when the service ends."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        ready: Path,
        environment: Mapping[str, str],
        settings: StageSettings,
        *,
        serves_users: bool = True,
    ) -> None:
        """Prepare to run `onward` with `arguments`; the child writes its pid to `ready` once it does its work.

        `serves_users`: whether users cannot be served before."""
        self.name = name
        self._serves_users = serves_users
        self._ready = ready
        self._command = [sys.executable, "-m", "onward", *arguments]
        self._environment = {**_OF_CHILDREN, **os.environ, **environment}
        self._restarts = Restarts(settings)
        self._end_s = settings.end_s
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"{name}-supervisor", daemon=True)
        self._ended: str | None = None

    def start(self) -> None:
        self._thread.start()

    def _supervise(self) -> None:
        # The parent-death signal follows the thread that forks, so this thread must live as long as the service.
        while not self._stopping.is_set():
            self._restarts.began()
            failure = failure_of(self._run_once)
            if self._stopping.is_set():
                break
            if failure is not None:  # there was no memory, or no file, for another process
                self._ended = cause_of(failure)
            wait_s = self._restarts.wait_s()
            logger.warning("%s %s; starting it again in %.1f s", self.name, self._ended, wait_s)
            telemetry.STAGE_RESTARTS.labels(part=self.name).inc()
            self._stopping.wait(wait_s)

    def _run_once(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment, preexec_fn=_die_with_parent)
        if self._stopping.is_set():  # told while it was being made
            self._process.terminate()
        self._ended = _how(self._process.wait())

    def terminate(self) -> None:
        """Ask it to end; `stop` waits for that."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Wait for its end. One that does not end in time shows in the log what it is doing, and is killed."""
        self.terminate()
        if self._thread.ident is None:  # it was never started
            return
        self._thread.join(self._end_s)
        for number in (signal.SIGABRT, signal.SIGKILL):
            if self._thread.is_alive() and self._process is not None:
                logger.error("%s has not ended, %g s after it was told to: %s", self.name, self._end_s, number.name)
                self._process.send_signal(number)
                self._thread.join(_SHOW_S)
        self._thread.join()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def restarts(self) -> int:
        return self._restarts.count

    @property
    def fault(self) -> str | None:
        """The way the last process ended; None once another does its work."""
        return None if self._is_ready() else self._ended

    @property
    def state(self) -> str:
        """`ok` once it does its work. Until then, at each start, it is missed only where users wait for it."""
        if self._is_ready():
            return OK
        lacking = "starting" if self._ended is None else f"down: {self._ended}"
        return lacking if self._serves_users else f"degraded: {lacking}"

    def _is_ready(self) -> bool:
        process = self._process
        if process is None or process.poll() is not None:
            return False
        try:
            return int(self._ready.read_text()) == process.pid
        except (FileNotFoundError, ValueError):
            return False


def _how(code: int) -> str:
    return f"ended with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    A stage without its service must not go on writing. This works on Linux; elsewhere a stage notices that its parent
    is another."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
