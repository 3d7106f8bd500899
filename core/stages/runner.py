"""The runner, which keeps one stage going until it is told to end, and knows how it is.

It does so in a thread of its own, or in the main thread of the stage's process.

    (stand by for the lease) ──► make ──► rounds ──► close
              ▲                   ▲          │
              │   an outage: soon            │ an error after which the stage cannot go on
              └───an error: later each time──┘     in a process of its own: raised, and the process is started again"""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Final

from core import telemetry
from core.errors import OnwardError, Unavailable
from core.records.handling import failure_of
from core.secrets import redacted
from core.settings import StageSettings
from core.stages.backoff import Restarts
from core.stages.ending import AGAIN_S, Ending
from core.stages.lease import Lease
from core.stages.rounds import Rounds
from core.stages.stage import OK, Stage

_STEP_S: Final = 1.0  # how soon one that waits for records notices that it is to end
logger = logging.getLogger(__name__)


class Runner:
    """The runner of one stage; `name`, `state`, `fault` and `restarts` are for any thread."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Stage] | None,
        settings: StageSettings,
        *,
        lease: Lease | None = None,
        ending: Ending | None = None,
        made: Stage | None = None,
        on_round: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Make a runner of the stage that `make` makes.

        `lease`: only its holder runs the stage. `made`: the first stage, if there is one already; without `make` others
        know it, and it goes on as it is after whatever it raised. `on_round` is told its health after each round."""
        self.name, self._make, self._lease = name, make, lease
        self._restarts = Restarts(settings)
        self._ending = ending or Ending()
        self._made, self._on_round = made, on_round
        self._stage: Stage | None = None
        self._waits_for: str | None = "starting"
        self.fault: str | None = None
        self._thread = threading.Thread(target=self._keep_going, name=name, daemon=True)

    # ------------------------------------------------------------------------------------------ as a thread

    def start(self) -> None:
        self._thread.start()

    def tell_to_end(self) -> None:
        self._ending.tell()
        stage = self._stage
        if stage is not None:
            stage.wake()

    def stop(self) -> None:
        self.tell_to_end()
        self._thread.join()

    def _keep_going(self) -> None:
        while not self._ending.is_due():
            failure = failure_of(self.run)
            if failure is not None:
                self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        wait_s = self._restarts.wait_s()
        self.fault = cause_of(failure)
        logger.error("%s is down for %.1f s: %s", self.name, wait_s, self.fault, exc_info=failure)
        telemetry.STAGE_RESTARTS.labels(part=self.name).inc()
        self._ending.wait(wait_s)

    # ------------------------------------------------------------------------------------------ as a process

    def run(self) -> None:
        """Run the stage until told to end. Raises errors of the stage that are no outage."""
        while not self._ending.is_due():
            try:
                self._run_stage()
            except Unavailable as error:
                self.waits(error)
                self._on_round(self.health)
                self._ending.wait(AGAIN_S)

    def waits(self, error: Unavailable) -> None:
        """Record that something the stage needs is unavailable."""
        logger.warning("%s waits: %s", self.name, error)
        self._waits_for = redacted(str(error))

    def _run_stage(self) -> None:
        """Run one stage, for as long as it has what it needs."""
        if self._lease is not None and not self._stand_by(self._lease):
            return
        self._restarts.began()
        with ExitStack() as held:
            held.enter_context(nullcontext() if self._lease is None else self._lease.kept())
            self._stage = self._next()
            held.callback(self._close, self._stage)
            rounds = Rounds(self.name, self._stage)
            while not self._ending.is_due():
                if self._lease is not None:
                    self._lease.check()
                rounds.step(_STEP_S)
                self._waits_for = self.fault = None
                self._on_round(self.health)

    def _next(self) -> Stage:
        stage = self._made
        if self._make is not None:
            self._made = None
            return stage or self._make()
        assert stage is not None
        return stage

    def _stand_by(self, lease: Lease) -> bool:
        """Wait for the lease, and return True once it is ours, False when told to end before."""
        while not self._ending.is_due():
            if lease.take():
                return True
            self._waits_for = None
            self._on_round(self.health)
            self._ending.wait(lease.ask_every_s)
        return False

    def _close(self, stage: Stage) -> None:
        self._stage = None
        if self._make is None and not self._ending.is_due():
            return
        failure = failure_of(stage.close)
        if failure is not None:
            logger.error("%s was not closed: %s", self.name, failure, exc_info=failure)

    # ------------------------------------------------------------------------------------------ how it is

    @property
    def restarts(self) -> int:
        return self._restarts.count

    @property
    def state(self) -> str:
        """`ok` while the stage goes on, else why it does not."""
        fault = self.fault
        return (self._waits_for or OK) if fault is None else f"down: {fault}"

    @property
    def health(self) -> str:
        """The runner's state, and while that is `ok`, the stage's own."""
        stage, state = self._stage, self.state
        return state if stage is None or state != OK else stage.state


def cause_of(failure: Exception) -> str:
    """Describe a failure for anybody to read.

    The message of an error that is not ours may quote what a client sent, so the place where it was raised stands
    instead."""
    if isinstance(failure, OnwardError | OSError):
        return redacted(f"{type(failure).__name__}: {failure}")
    traceback = failure.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return type(failure).__name__
    return f"{type(failure).__name__} in {Path(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
