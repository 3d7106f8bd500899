"""A stage: a part of the product with one job.

It says what is done; its runner (`core.stages.runner`) does the rest: polls, hands over, waits, sets aside what cannot
be taken, and tries again when something was away."""

import threading
import time
from collections.abc import Sequence

from core.errors import Fenced, Unavailable
from core.ports import Record
from core.stages.sources import Source

OK = "ok"


class Stage:
    """One part with one job; used by one thread, but for `wake` and `state`.

    A stage that reads the log has a `source` and takes its records in `handle`; any may do in `tick` what time asks
    for."""

    source: Source | None = None

    def __init__(self) -> None:
        self.woken = threading.Event()

    @property
    def state(self) -> str:
        """`ok`, or at what loss it goes on. Cheap: asked after each round."""
        return OK

    def begin(self) -> None:
        """Before its first round; again where something was away."""

    def room(self) -> int:
        """How many records it would take now; 0: none are read."""
        return 512

    def handle(self, records: Sequence[Record]) -> None:
        """Do all of these in one unit of work, or none when it raises.

        It may be given some of them again, and fewer at a time."""
        raise NotImplementedError

    def tick(self) -> float:
        """Do what is due, at the end of each round.

        Returns in how many seconds it is to be asked again at the latest, if neither records nor `wake` end the wait;
        0: there is more to do now."""
        return 1.0

    def recover(self, error: Unavailable | Fenced) -> None:
        """Make ready for the next round after one in which something was away, or another took its place.

        A stage that cannot go on as it is raises `error`: another is made in its place."""
        if self.source is not None:
            self.source.recover(error)

    def wake(self) -> None:
        """Do not wait any longer, where no records are waited for. From any thread."""
        self.woken.set()

    def close(self) -> None:
        """Nobody uses it any more."""
        if self.source is not None:
            self.source.close()


def until(moment_s: float) -> float:
    """Return the seconds from now to `moment_s` (monotonic), for a `tick` that waits for it.

    Never 0, which would say that there is more to do."""
    return max(0.001, moment_s - time.monotonic())
