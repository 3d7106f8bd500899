"""Renewal of what others would take for abandoned.

It runs in a thread of its own, as the work done meanwhile may take longer than the others wait."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.errors import Unavailable
from core.records.handling import failure_of

logger = logging.getLogger(__name__)


@contextmanager
def renewing(name: str, every_s: float, renew: Callable[[], object]) -> Iterator[None]:
    """Call `renew` every `every_s`, for as long as this lasts.

    What is away is there again the next time; any other failure ends it."""
    over = threading.Event()

    def keep_renewing() -> None:
        while not over.wait(every_s):
            failure = failure_of(renew)
            if failure is None:
                continue
            logger.warning("%s was not renewed: %s", name, failure)
            if not isinstance(failure, Unavailable):
                return

    thread = threading.Thread(target=keep_renewing, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
