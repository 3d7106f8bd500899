"""Waking of threads that wait for changes of releases, through PostgreSQL's LISTEN.

A thread of its own holds one connection. While it has none, nobody is woken, and waiting threads look for themselves as
often as they must."""

import logging
import os
import select
import threading
from typing import Any, Final
from weakref import WeakSet

import psycopg

from core.store.database.repository import CHANNEL

_AGAIN_S: Final = 1.0
_ALIVE: Final[dict[str, Any]] = {"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3}
logger = logging.getLogger(__name__)


class Listening:
    """A listener that runs from its construction until `close`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._woken: WeakSet[threading.Event] = WeakSet()
        self._lock = threading.Lock()
        self._over, self._end = os.pipe()
        self.hears = False
        self._thread = threading.Thread(target=self._run, name="store-changes", daemon=True)
        self._thread.start()

    def wake(self, woken: threading.Event) -> None:
        """Set `woken` at every change from now on, for as long as anybody holds a reference to it.

        And once at the beginning, as soon as changes are heard of: there may have been some before."""
        with self._lock:
            self._woken.add(woken)
            if self.hears:
                woken.set()

    def close(self) -> None:
        """Stop listening; nobody is woken any more. Calling it again does nothing."""
        if self._thread.is_alive():
            os.write(self._end, b"\0")
            self._thread.join()
            os.close(self._end)
            os.close(self._over)

    def _run(self) -> None:
        wait_s = 0.0
        while not select.select([self._over], [], [], wait_s)[0]:
            try:
                with psycopg.connect(self._url, autocommit=True, **_ALIVE) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._listen(connection)
                    return
            except psycopg.Error as error:
                self.hears = False
                logger.warning(
                    "the database cannot announce changes of releases, which are polled for meanwhile: %s", error
                )
                wait_s = _AGAIN_S

    def _listen(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        """Wake everybody at each notification, until told to close. Raises psycopg.Error."""
        self._wake_all(begins=True)  # there may have been changes before
        while True:
            ready, _, _ = select.select([connection.fileno(), self._over], [], [])
            if self._over in ready:
                return
            if list(connection.notifies(timeout=0)):
                self._wake_all()

    def _wake_all(self, *, begins: bool = False) -> None:
        with self._lock:  # nobody comes meanwhile: each is woken once as it begins to hear
            self.hears = self.hears or begins
            for woken in list(self._woken):
                woken.set()
