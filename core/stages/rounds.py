"""One stage's rounds: wait for records or for time, take them, tick. The one place that waits out an outage."""

import logging
import math
import time
from collections.abc import Sequence
from typing import Final

from core import telemetry
from core.errors import Fenced, Unavailable
from core.ports import Record
from core.stages.backoff import Backoff
from core.stages.stage import Stage

_FIRST_S: Final = 0.1
_MOST_S: Final = 0.5  # engines whose hosts fell silent are sent no users
_SAY_S: Final = 10.0  # how often, while it lasts, the log says what is away
logger = logging.getLogger(__name__)


class Rounds:
    """The rounds of one stage. Not thread-safe."""

    def __init__(self, name: str, stage: Stage) -> None:
        self._name, self._stage = name, stage
        self._has_begun = False
        self._rest_s = self._at_first_s = 0.0 if stage.source is None else math.inf
        self._backoff = Backoff(_FIRST_S, _MOST_S)
        self._say_at_s = float("-inf")

    def step(self, timeout_s: float) -> int:
        """Do one round, of which about `timeout_s` at most is waiting, unless something is unavailable.

        Returns how many records it took, and 1 more when there is more to do at once. Raises errors that are no outage,
        and an outage after which the stage cannot go on."""
        try:
            records = self._round(timeout_s)
        except (Unavailable, Fenced) as error:
            self._wait_out(error)
            return 0
        self._backoff.is_over()
        return len(records) + (self._rest_s <= 0)

    def _round(self, timeout_s: float) -> Sequence[Record]:
        if not self._has_begun:
            self._stage.begin()
            self._has_begun = True
        records = self._wait(min(timeout_s, self._rest_s))
        if self._stage.source is not None:
            self._stage.source.take(records, self._stage.handle)
            telemetry.STAGE_RECORDS.labels(part=self._name).inc(len(records))
        self._rest_s = self._stage.tick()
        return records

    def _wait(self, timeout_s: float) -> Sequence[Record]:
        stage, room = self._stage, self._stage.room()
        if stage.source is not None and room > 0:
            return stage.source.poll(room, timeout_s)
        stage.woken.wait(timeout_s)
        stage.woken.clear()
        return ()

    def _wait_out(self, error: Unavailable | Fenced) -> None:
        if time.monotonic() >= self._say_at_s:
            self._say_at_s = time.monotonic() + _SAY_S
            logger.warning("%s waits: %s", self._name, error)
        self._stage.recover(error)
        self._rest_s = self._at_first_s
        self._stage.woken.wait(self._backoff.wait_s())
        self._stage.woken.clear()
