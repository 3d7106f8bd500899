"""Keeps the threads and child processes of the service going, and knows how they are."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from core import telemetry
from core.errors import OnwardError
from core.records.handling import failure_of
from core.secrets import redacted
from core.settings import StageSettings
from onward.processes.restarts import Restarts
from onward.wiring import Stage

OK = "ok"
_STEP_S = 0.2
_PR_SET_PDEATHSIG = 1
logger = logging.getLogger(__name__)


def cause_of(failure: Exception) -> str:
    """For anybody to read: what is no error of ours may quote what a client sent, so its place stands for its words."""
    if isinstance(failure, OnwardError | OSError):
        return redacted(f"{type(failure).__name__}: {failure}")
    traceback = failure.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return type(failure).__name__
    return f"{type(failure).__name__} in {Path(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"


class StageThread(threading.Thread):
    """Calls one stage's `step` until stopped. One that raises is started again after a while; `fault` says meanwhile
    what it was."""

    def __init__(
        self, name: str, stage: Stage, settings: StageSettings, make_anew: Callable[[], Stage] | None = None
    ) -> None:
        """`make_anew`: another in its place. None: others know this one, and it is called again as it is."""
        super().__init__(name=name, daemon=True)
        self._stage: Stage | None = stage
        self._make_anew = make_anew
        self._restarts = Restarts(settings)
        self._stopping = threading.Event()
        self.fault: str | None = None

    def run(self) -> None:
        while not self._stopping.is_set():
            failure = failure_of(self._keep_stepping)
            if failure is not None:
                self._fail(failure)
        self._close()

    def _keep_stepping(self) -> None:
        if self._stage is None:
            assert self._make_anew is not None
            self._stage = self._make_anew()
        self._restarts.began()
        while not self._stopping.is_set():
            self._stage.step(_STEP_S)
            self.fault = None

    def _fail(self, failure: Exception) -> None:
        wait_s = self._restarts.wait_s()
        self.fault = cause_of(failure)
        logger.error("%s is down for %.1f s: %s", self.name, wait_s, self.fault, exc_info=failure)
        telemetry.STAGE_RESTARTS.labels(part=self.name).inc()
        if self._make_anew is not None:
            self._close()
        self._stopping.wait(wait_s)

    def _close(self) -> None:
        stage, self._stage = self._stage, None
        failure = None if stage is None else failure_of(stage.close)
        if failure is not None:
            logger.error("%s was not closed: %s", self.name, failure, exc_info=failure)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    @property
    def restarts(self) -> int:
        return self._restarts.count

    @property
    def state(self) -> str:
        """`ok`, or what is wrong."""
        fault = self.fault
        return OK if fault is None else f"down: {fault}"


class ChildProcess:
    """A stage as a process of its own, started again when it dies, and dead when the service is."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        ready: Path,
        environment: Mapping[str, str],
        settings: StageSettings,
    ) -> None:
        """`ready`: where the child writes its pid once it does its work."""
        self.name = name
        self._ready = ready
        self._command = [sys.executable, "-m", "onward", *arguments]
        self._environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **environment}
        self._restarts = Restarts(settings)
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
        self._ended = _how(self._process.wait())

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
    def restarts(self) -> int:
        return self._restarts.count

    @property
    def fault(self) -> str | None:
        """How it ended, until another does its work."""
        return None if self._is_ready() else self._ended

    @property
    def state(self) -> str:
        """`ok` once it does its work."""
        if self._is_ready():
            return OK
        ended = self._ended
        return "starting" if ended is None else f"down: {ended}"

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
    """A stage without its service must not go on writing (Linux; elsewhere it notices its parent's change)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
