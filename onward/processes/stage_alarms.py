"""Alarms of stages that are down, and their metric: opened for each, closed once it has been well for a while.

A stage may be taken away while its alarm is open: its container is removed, or fewer of them are wanted. So the process
that keeps a stage says again and again, in the alarm, that it does; where nobody has said so for a while, any process
closes the alarm."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from core import telemetry
from core.ids import Namespace
from core.operations.alarms import STAGE_DOWN, Opening, StoredAlarm
from core.ports import Clock, Store
from core.records.handling import failure_of
from core.stages.stage import OK

_LOOK_S = 0.5
_KEPT_AGAIN = timedelta(minutes=1)
_GONE = timedelta(minutes=10)
_NOBODYS = Namespace("")
logger = logging.getLogger(__name__)


class RunningPart(Protocol):
    """One part that is kept going: a thread, a child process, or this process' own stage."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str:
        """`ok`, or what is wrong."""
        ...

    @property
    def fault(self) -> str | None:
        """The reason why the part is down; None once it is back."""
        ...

    @property
    def restarts(self) -> int: ...


class StageAlarms:
    """The alarms of `parts`, used by one thread at a time.

    The store knows which are open: a process that was started again closes what its predecessor opened."""

    def __init__(
        self,
        parts: Sequence[RunningPart],
        store: Store,
        clock: Clock,
        well_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts, self._store, self._clock = parts, store, clock
        self._well_s, self._monotonic = well_s, monotonic
        self._open: dict[str, str] | None = None  # by stage; None: not asked yet
        self._down: set[str] = set()
        self._well_since_s: dict[str, float] = {}
        self._kept_at = datetime.min.replace(tzinfo=UTC)

    def look(self) -> None:
        """Open and close alarms by the parts' present faults.

        Raises StoreUnavailable; the next look does what this one did not."""
        for part in self._parts:
            telemetry.STAGE_UP.labels(part=part.name).set(part.state == OK)
        if self._open is None:
            self._open = self._known()
        now = self._clock.now()
        if now - self._kept_at >= _KEPT_AGAIN:
            self._keep(now)
            self._kept_at = now
        for part in self._parts:
            fault, name = part.fault, part.name
            if fault is not None:
                self._well_since_s.pop(name, None)
                if name not in self._down:
                    self._open[name] = self._raise(part, fault)
                    self._down.add(name)
                continue
            self._down.discard(name)
            if name in self._open and part.state == OK:
                self._close_if_well(name, self._open)

    def _known(self) -> dict[str, str]:
        names = {part.name for part in self._parts}
        return {stage: alarm.alarm_id for stage, alarm in self._all().items() if stage in names}

    def _all(self) -> dict[str, StoredAlarm]:
        """Return all open alarms of stages, by stage, whoever keeps them."""
        with self._store.look() as view:
            found = view.alarms.that_are_open()
        return {alarm.opening.workload: alarm for alarm in found if alarm.opening.monitor == STAGE_DOWN}

    def _keep(self, now: datetime) -> None:
        """Prolong the alarms of our stages, and close those of stages that nobody keeps any more."""
        known, names = self._all(), {part.name for part in self._parts}
        kept = [alarm for stage, alarm in known.items() if stage in names]
        gone = [a for stage, a in known.items() if stage not in names and now - a.opening.window_end >= _GONE]
        if kept or gone:
            with self._store.work() as work:
                for alarm in kept:
                    work.alarms.prolong(alarm, now)
                for alarm in gone:
                    work.alarms.close(alarm.alarm_id, now)
        for alarm in gone:
            logger.info("alarm %s is closed: nobody keeps the stage any more", alarm.alarm_id)
        self._down &= known.keys()  # what others took for gone is opened again

    def _raise(self, part: RunningPart, fault: str) -> str:
        now = self._clock.now()
        opening = Opening(
            alarm_id=f"{STAGE_DOWN}-{secrets.token_hex(4)}",
            monitor=STAGE_DOWN,
            meaning=f"the stage {part.name} is down: {fault}",
            severity="critical",
            namespace=_NOBODYS,
            workload=part.name,
            figures={"restarts": float(part.restarts)},
            holds=(),
            opened_at=now,
            window_start=now,
            window_end=now,
        )
        with self._store.work() as work:
            if work.alarms.open(opening):
                telemetry.ALARMS.labels(monitor=STAGE_DOWN, severity="critical").inc()
                logger.warning("alarm %s: %s", opening.alarm_id, opening.meaning)
                return opening.alarm_id
        return self._known()[part.name]  # another process has opened one

    def _close_if_well(self, name: str, known: dict[str, str]) -> None:
        since_s = self._well_since_s.setdefault(name, self._monotonic())
        if self._monotonic() - since_s < self._well_s:
            return
        with self._store.work() as work:
            work.alarms.close(known[name], self._clock.now())
        logger.info("alarm %s is closed", known[name])
        del known[name], self._well_since_s[name]


def look_last(stage_alarms: StageAlarms) -> None:
    """Look once more, before the process ends."""
    unsaid = failure_of(stage_alarms.look)
    if unsaid is not None:
        logger.warning("the store was not told which stages are down: %s", unsaid)


@contextmanager
def watched(stage_alarms: StageAlarms) -> Iterator[None]:
    """Look again and again, in a thread of its own, for as long as this lasts."""
    ending = threading.Event()

    def keep_looking() -> None:
        while not ending.wait(_LOOK_S):
            failure = failure_of(stage_alarms.look)
            if failure is not None:
                logger.warning("the alarms of stages are not up to date: %s", failure)

    thread = threading.Thread(target=keep_looking, name="stage-alarms", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
