"""A stage: a part of the product with one job.

It says what is done; its runner (`core.stages.runner`) does the rest: polls, hands over, waits, sets aside what cannot
be taken, and tries again after an outage."""

import threading
import time
from collections.abc import Sequence

from core.errors import Fenced, Unavailable
from core.ports import Record
from core.stages.sources import RecordSource

OK = "ok"


class Stage:
    """One part with one job; used by one thread, but for `wake` and `state`.

    A stage that reads the log has a `source` and takes its records in `handle`; any stage may do in `tick` what falls
    due as time passes."""

    source: RecordSource | None = None

    def __init__(self) -> None:
        self.woken = threading.Event()

    @property
    def state(self) -> str:
        """`ok`, or what is wrong while it goes on. Must be cheap: it is read after each round."""
        return OK

    def begin(self) -> None:
        """Get ready for the first round; called again if that failed because something was unavailable."""

    def room(self) -> int:
        """Return how many records it would take now; with 0 none are read."""
        return 512

    def handle(self, records: Sequence[Record]) -> None:
        """Handle all of these records in one unit of work, or none when it raises.

        It may be given some of them again, and fewer at a time."""
        raise NotImplementedError

    def tick(self) -> float:
        """Do what is due, at the end of each round.

        Returns in how many seconds it is to be called again at the latest, if neither records nor `wake` end the wait;
        0 means that there is more to do now."""
        return 1.0

    def recover(self, error: Unavailable | Fenced) -> None:
        """Get ready for the next round after one in which something was unavailable, or another took its place.

        A stage that cannot go on as it is raises `error`, and another is made in its place."""
        if self.source is not None:
            self.source.recover(error)

    def wake(self) -> None:
        """End the wait, where no records are waited for. From any thread."""
        self.woken.set()

    def close(self) -> None:
        """Release what the stage holds, as nobody uses it any more."""
        if self.source is not None:
            self.source.close()


def until(moment_s: float) -> float:
    """Return the seconds from now to `moment_s` (monotonic), for a `tick` that waits for it.

    Never 0, which would say that there is more to do."""
    return max(0.001, moment_s - time.monotonic())
