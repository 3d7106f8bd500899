"""A map of the entries that were used last, in rooms that share one bound."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Rooms(Generic[V]):
    """A map of the most recently used entries, bounded by their number over all rooms.

    Beyond the bound the room with most entries gives up its oldest: whoever fills one crowds nobody out of another.
    Rooms are to be few, since the fullest is looked for among all."""

    def __init__(self, max_entries: int) -> None:
        self._rooms: dict[Hashable, OrderedDict[Hashable, V]] = {}
        self._max_entries = max_entries
        self._entries = 0

    def put(self, room: Hashable, key: Hashable, value: V) -> None:
        self.drop(room, key)
        self._rooms.setdefault(room, OrderedDict())[key] = value
        self._entries += 1
        if self._entries > self._max_entries:
            max(self._rooms.values(), key=len).popitem(last=False)
            self._entries -= 1

    def get(self, room: Hashable, key: Hashable) -> V | None:
        entries = self._rooms.get(room)
        if entries is None or key not in entries:
            return None
        entries.move_to_end(key)
        return entries[key]

    def drop(self, room: Hashable, key: Hashable) -> None:
        entries = self._rooms.get(room)
        if entries is not None and key in entries:
            del entries[key]
            self._entries -= 1
