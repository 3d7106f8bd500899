"""A map of the entries that were used last, in rooms that share one bound."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from api.live_state.recent import RecentlyUsed

V = TypeVar("V")


class Rooms(Generic[V]):
    """A map of the most recently used entries, bounded by their weight over all rooms.

    Beyond the bound the heaviest room gives up its oldest: whoever fills one crowds nobody out of another. Rooms are
    to be few, since the heaviest is looked for among all."""

    def __init__(self, max_weight: int) -> None:
        self._rooms: dict[Hashable, RecentlyUsed[V]] = {}
        self._max_weight = max_weight
        self._weight = 0

    def put(self, room: Hashable, key: Hashable, value: V, weight: int) -> None:
        self.drop(room, key)
        self._rooms.setdefault(room, RecentlyUsed()).put(key, value, weight)
        self._weight += weight
        while self._weight > self._max_weight:
            heaviest = max(self._rooms.values(), key=lambda each: each.weight)
            self._weight -= heaviest.drop_oldest()

    def get(self, room: Hashable, key: Hashable) -> V | None:
        entries = self._rooms.get(room)
        return None if entries is None else entries.get(key)

    def drop(self, room: Hashable, key: Hashable) -> None:
        entries = self._rooms.get(room)
        if entries is not None:
            self._weight -= entries.drop(key)
