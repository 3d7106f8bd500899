"""Keeps the threads of the service and its learner process going, and knows how they are."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

from core.errors import OnwardError
from onward.layout import Layout
from onward.wiring import Stage

_STEP_S = 0.1
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


class LearnerProcess:
    """The learner as a child process, started again when it dies."""

    def __init__(self, layout: Layout, environment: Mapping[str, str]) -> None:
        self._ready = layout.learner_ready
        self._command = [sys.executable, "-m", "onward", "learn", str(layout.root)]
        self._environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **environment}
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name="learner-supervisor", daemon=True)
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
                logger.warning("the learner ended with %s; starting it again", code)
                self._stopping.wait(_RESTART_S)

    def stop(self) -> None:
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self._thread.join()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> str:
        """`ok` once it takes rewards."""
        if self._process is None or self._process.poll() is not None:
            return "not running"
        try:
            return "ok" if int(self._ready.read_text()) == self._process.pid else "starting"
        except (FileNotFoundError, ValueError):
            return "starting"


def _die_with_parent() -> None:
    """A learner without its service must not go on writing (Linux; elsewhere it notices its parent's change)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
