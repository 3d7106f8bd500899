"""A cache of sessions between transactions: an ongoing session is not loaded again for each of its turns.

A session is lent to a transaction and comes back once that is over; those of a failed transaction do not come back, and
are loaded again from the store."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from core.operations.ledger import SessionKey
from scoring.rewards.state import Session

_MOST: Final = 50_000
"""Turns and outcomes that are kept, a kilobyte or two each, and those with long texts for as many as they have; what
the last transaction used stays in any case."""


class SessionCache:
    """The cache; not thread-safe. If anyone else may have written the ledger's rows, `clear` it."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()
        self._size = 0

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def lend(self, keys: Iterable[SessionKey]) -> dict[SessionKey, Session]:
        """Remove the cached sessions among the keys, and return them."""
        lent = {key: self._sessions.pop(key) for key in keys if key in self._sessions}
        self._size -= sum(session.size for session in lent.values())
        return lent

    def put(self, sessions: Iterable[Session]) -> None:
        used = 0
        for session in sessions:
            self._sessions[session.key] = session
            used += 1
            self._size += session.size
        while self._size > self._most and len(self._sessions) > used:
            _, oldest = self._sessions.popitem(last=False)
            self._size -= oldest.size

    def clear(self) -> None:
        self._sessions.clear()
        self._size = 0
