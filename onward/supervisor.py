"""Keeps the threads and child processes of the service going, and knows how they are."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import OnwardError
from onward.wiring import Stage

_STEP_S = 0.2
_RESTART_S = 1.0
_PR_SET_PDEATHSIG = 1
logger = logging.getLogger(__name__)


class StageThread(threading.Thread):
    """Calls one stage's `step` until stopped. An error ends the thread; `fault` then says which."""

    def __init__(self, name: str, stage: Stage) -> None:
        super().__init__(name=name, daemon=True)
        self._stage = stage
        self._stopping = threading.Event()
        self.fault: str | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._stage.step(_STEP_S)
        except (OnwardError, OSError) as error:
            self.fault = f"{type(error).__name__}: {error}"
            logger.error("%s stopped: %s", self.name, self.fault)
        finally:
            self._stage.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    @property
    def state(self) -> str:
        """`ok`, or what is wrong."""
        if self.fault is not None:
            return self.fault
        return "ok" if self.is_alive() else "stopped by an unexpected error, see the log"


class ChildProcess:
    """A stage as a process of its own, started again when it dies, and dead when the service is."""

    def __init__(self, name: str, arguments: Sequence[str], ready: Path, environment: Mapping[str, str]) -> None:
        """`ready`: where the child writes its pid once it does its work."""
        self.name = name
        self._ready = ready
        self._command = [sys.executable, "-m", "onward", *arguments]
        self._environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **environment}
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"{name}-supervisor", daemon=True)
        self.restarts = 0

    def start(self) -> None:
        self._thread.start()

    def _supervise(self) -> None:
        # The parent-death signal follows the thread that forks, so this thread must live as long as the service.
        while not self._stopping.is_set():
            self._process = subprocess.Popen(self._command, env=self._environment, preexec_fn=_die_with_parent)
            code = self._process.wait()
            if not self._stopping.is_set():
                self.restarts += 1
                logger.warning("%s ended with %s; starting it again", self.name, code)
                self._stopping.wait(_RESTART_S)

    def terminate(self) -> None:
        """Ask it to end; `stop` waits for that."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        self.terminate()
        self._thread.join()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> str:
        """`ok` once it does its work."""
        if self._process is None or self._process.poll() is not None:
            return "not running"
        try:
            return "ok" if int(self._ready.read_text()) == self._process.pid else "starting"
        except (FileNotFoundError, ValueError):
            return "starting"


def _die_with_parent() -> None:
    """A stage without its service must not go on writing (Linux; elsewhere it notices its parent's change)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
