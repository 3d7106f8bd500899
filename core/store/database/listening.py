"""Who waits for changes of releases is woken by the database itself: PostgreSQL's LISTEN.

A thread of its own holds one connection. While it has none, nobody is woken: who waits then looks by itself as often
as it must.
"""

import logging
import os
import select
import threading
from typing import Final
from weakref import WeakSet

import psycopg

from core.store.database.repository import CHANNEL

_AGAIN_S: Final = 1.0
_ALIVE: Final = {"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3}
logger = logging.getLogger(__name__)


class Listening:
    """From its making until `close`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._woken: WeakSet[threading.Event] = WeakSet()
        self._over, self._end = os.pipe()
        self.hears = False
        self._thread = threading.Thread(target=self._run, name="store-changes", daemon=True)
        self._thread.start()

    def wake(self, woken: threading.Event) -> None:
        """From now on, for as long as anybody has it."""
        self._woken.add(woken)

    def close(self) -> None:
        """Nobody is woken any more. Again: nothing happens."""
        if self._thread.is_alive():
            os.write(self._end, b"\0")
            self._thread.join()
            os.close(self._end)
            os.close(self._over)

    def _run(self) -> None:
        wait_s = 0.0
        while not select.select([self._over], [], [], wait_s)[0]:
            try:
                with psycopg.connect(self._url, autocommit=True, **_ALIVE) as connection:  # type: ignore[arg-type]
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._listen(connection)
                    return
            except psycopg.Error as error:
                self.hears = False
                logger.warning("changes of releases are looked for: %s", error)
                wait_s = _AGAIN_S

    def _listen(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        """Until it is over. Raises psycopg.Error."""
        self.hears = True
        self._wake_all()  # there may have been changes before
        while True:
            ready, _, _ = select.select([connection.fileno(), self._over], [], [])
            if self._over in ready:
                return
            if list(connection.notifies(timeout=0)):
                self._wake_all()

    def _wake_all(self) -> None:
        for woken in list(self._woken):
            woken.set()
