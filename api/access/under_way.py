"""The memory of requests until they are answered, bounded in bytes: in all, for each user, and for each key."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from core.errors import Overloaded
from core.settings import BodySettings
from core.telemetry import REFUSED_BODIES

_OF_A_KEY = 0.75  # of all: a key names its users itself, and may make up as many as it likes


class UnderWay:
    """The bytes of the requests of one process that are not answered yet, as they were sent. One event loop."""

    def __init__(self, settings: BodySettings) -> None:
        self._most, self._most_of_user = settings.under_way_bytes, settings.under_way_user_bytes
        self._most_of_key = _OF_A_KEY * settings.under_way_bytes
        self._held = 0
        self._of: dict[Hashable, int] = {}
        """The bytes of each user and of each key that has any."""

    @contextmanager
    def hold(self, key: Hashable, user: Hashable, size: int) -> Iterator[None]:
        """Count a request of a key's user until it is answered. Raises Overloaded where there is no room for it.

        What is larger than all room is let in alone: else it would be told to come back for ever."""
        of_user, of_key = ("user", user), ("key", key)
        if self._exceeds(of_user, size, self._most_of_user):
            REFUSED_BODIES.labels("user").inc()
            raise Overloaded("this user's requests that wait for answers are too large together; try again in a moment")
        if self._exceeds(of_key, size, self._most_of_key):
            REFUSED_BODIES.labels("key").inc()
            raise Overloaded("this key's requests that wait for answers are too large together; try again in a moment")
        if self._held and self._held + size > self._most:
            REFUSED_BODIES.labels("under_way").inc()
            raise Overloaded("too much waits to be answered; try again in a moment")
        self._add(of_user, of_key, size)
        try:
            yield
        finally:
            self._add(of_user, of_key, -size)

    def _exceeds(self, whose: Hashable, size: int, most: float) -> bool:
        held = self._of.get(whose, 0)
        return bool(held) and held + size > most

    def _add(self, of_user: Hashable, of_key: Hashable, size: int) -> None:
        self._held += size
        for whose in (of_user, of_key):
            self._of[whose] = self._of.get(whose, 0) + size
            if not self._of[whose]:
                del self._of[whose]
