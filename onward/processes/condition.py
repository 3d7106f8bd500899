"""How a process of ours is, for those who ask it."""

import logging
from typing import Protocol, runtime_checkable

from core.errors import Unavailable
from core.secrets import redacted
from onward.http.metrics_server import OK
from onward.wiring import Stage

AGAIN_S = 1.0  # after something that a process needs was away
logger = logging.getLogger(__name__)


@runtime_checkable
class Stateful(Protocol):
    """A stage that may go on and be at a loss."""

    @property
    def state(self) -> str:
        """`ok`, or what is wrong."""
        ...


class Condition:
    """What a process waits for; once its stage is made, what that says of itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stage: Stateful | None = None
        self._waits_for = "starting"
        self.is_waiting = False

    def waits(self, error: Unavailable) -> None:
        logger.warning("%s waits: %s", self._name, error)
        self._stage, self._waits_for, self.is_waiting = None, redacted(str(error)), True

    def is_of(self, stage: Stage) -> None:
        self._stage = stage if isinstance(stage, Stateful) else None  # slow to ask: not at every step
        self._waits_for, self.is_waiting = OK, False

    def now(self) -> str:
        """`ok`, or what is wrong. From any thread."""
        stage = self._stage
        return self._waits_for if stage is None else stage.state
