"""What requests keep in memory until they are answered: bounded by bytes, in all and of a user."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from core.errors import Overloaded
from core.settings import BodySettings
from core.telemetry import REFUSED_BODIES


class UnderWay:
    """The bytes of the requests of one process that are not answered yet, as they were sent. One event loop."""

    def __init__(self, settings: BodySettings) -> None:
        self._most, self._most_of_user = settings.under_way_bytes, settings.under_way_user_bytes
        self._held = 0
        self._of_users: dict[Hashable, int] = {}

    @contextmanager
    def hold(self, user: Hashable, size: int) -> Iterator[None]:
        """Count a request of a user until it is answered. Raises Overloaded where there is no room for it.

        What is larger than all room is let in alone: else it would be told to come back for ever."""
        of_user = self._of_users.get(user, 0)
        if of_user and of_user + size > self._most_of_user:
            REFUSED_BODIES.labels("user").inc()
            raise Overloaded("this user's requests that wait for answers are too large together; try again in a moment")
        if self._held and self._held + size > self._most:
            REFUSED_BODIES.labels("under_way").inc()
            raise Overloaded("too much waits to be answered; try again in a moment")
        self._add(user, size)
        try:
            yield
        finally:
            self._add(user, -size)

    def _add(self, user: Hashable, size: int) -> None:
        self._held += size
        self._of_users[user] = self._of_users.get(user, 0) + size
        if not self._of_users[user]:
            del self._of_users[user]
