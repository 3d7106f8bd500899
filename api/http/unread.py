"""The bytes of answers that clients have not taken yet: counted for each connection, and bounded for all together.

A client that stops reading holds what it was sent. A deadline on reading bounds how long it does; this bounds how much
all of them hold meanwhile."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from core.telemetry import UNREAD_BYTES

_CALLER: Final = "caller"
_WAITING: Final = "waiting_bytes"
_ROOM: Final = 1 / 16  # of the bound, that is made at once: else each further byte would be a look at all connections
_LOG_EVERY_S: Final = 60.0
_Caller = tuple[Hashable, ...]
logger = logging.getLogger(__name__)


def name_caller(scope: MutableMapping[str, Any], caller: _Caller) -> None:
    """Say whose request this is: the namespace first, then the key, and what else tells callers apart."""
    scope.setdefault("state", {})[_CALLER] = caller


def caller_of(scope: Mapping[str, Any]) -> _Caller:
    """Return whose request this is; an empty tuple for those that named no key that is known."""
    caller: _Caller = scope.get("state", {}).get(_CALLER, ())
    return caller


@contextmanager
def counted(scope: MutableMapping[str, Any], waiting: Callable[[], int]) -> Iterator[None]:
    """Count with the connection what waits to be sent before it is written: so many bytes as `waiting` returns."""
    state = scope.setdefault("state", {})
    state[_WAITING] = waiting
    try:
        yield
    finally:
        del state[_WAITING]  # a connection keeps its newest request, and would keep the answer with it


def waiting_of(scope: Mapping[str, Any]) -> int:
    """Return the bytes of this request's answer that wait before they are written."""
    waiting: Callable[[], int] | None = scope.get("state", {}).get(_WAITING)
    return 0 if waiting is None else waiting()


class Holder(Protocol):
    """A connection, as far as it holds bytes."""

    @property
    def held_bytes(self) -> int:
        """The bytes of answers that the service holds for this connection."""
        ...

    @property
    def caller(self) -> _Caller: ...

    @property
    def unread_since(self) -> float | None:
        """When the client took something last, by the event loop's clock in seconds; None: it takes what there is."""
        ...

    def break_unread(self) -> None:
        """Close the connection at once, and let go of what it holds."""
        ...


class Unread:
    """The bytes that all connections of one server hold. One event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Holder, int] = {}
        self._total = 0
        self._look: asyncio.Handle | None = None
        self._logged_s: float | None = None
        self._closed: Counter[_Caller] = Counter()
        """The connections that were closed since the log was told."""

    def note(self, connection: Holder, loop: asyncio.AbstractEventLoop) -> None:
        """Count anew what a connection holds. Where all hold too much, some are closed when the loop comes round.

        By then the system has taken what it takes at once, so that what is read as it comes counts little."""
        size = connection.held_bytes
        self._total += size - self._held.get(connection, 0)
        if size:
            self._held[connection] = size
        else:
            self._held.pop(connection, None)
        if self._total > self._most and self._look is None:
            self._look = loop.call_soon(self._bound, loop)

    def forget(self, connection: Holder) -> None:
        self._total -= self._held.pop(connection, 0)

    def show(self, now: float) -> None:
        """Set the metric, and tell the log what was closed, once a minute at most; `now`: by the event loop's clock."""
        UNREAD_BYTES.set(self._total)
        if self._closed and (self._logged_s is None or now - self._logged_s >= _LOG_EVERY_S):
            self._logged_s = now
            self._log()

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look = None
        self._held = {connection: size for connection in self._held if (size := connection.held_bytes)}
        self._total = sum(self._held.values())
        if self._total > self._most:
            while self._total > self._most * (1 - _ROOM):
                self._close_one(loop.time())
        self.show(loop.time())

    def _close_one(self, now: float) -> None:
        """Close the connection that was read longest ago, of the namespace and of its key that hold most.

        So nobody is closed for others who hold more. Of connections that were read equally long ago it is the one that
        holds most."""
        of_namespace = self._of_largest(list(self._held), 1)
        of_key = self._of_largest(of_namespace, None)
        connection = min(of_key, key=lambda each: (_read_s(each, now), -self._held[each]))
        self._closed[connection.caller] += 1
        self.forget(connection)
        connection.break_unread()

    def _of_largest(self, connections: list[Holder], fields: int | None) -> list[Holder]:
        """Return the connections of the callers, told apart by so many fields (None: all), who hold most together."""
        held: Counter[_Caller] = Counter()
        for each in connections:
            held[each.caller[:fields]] += self._held[each]
        largest = max(held, key=lambda caller: held[caller])
        return [each for each in connections if each.caller[:fields] == largest]

    def _log(self) -> None:
        (worst, _), *_ = self._closed.most_common(1)
        logger.warning(
            "closed %d connections whose clients did not read: answers together held more than %d bytes"
            " (api.connections.unread_bytes); most were of namespace %s, key %s",
            self._closed.total(),
            self._most,
            *((worst[0], worst[1] or "keyless") if worst else ("none", "none")),
        )
        self._closed.clear()


def _read_s(connection: Holder, now: float) -> float:
    return now if connection.unread_since is None else connection.unread_since
