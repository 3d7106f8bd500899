"""A map that keeps the entries that were used last."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """A map of the most recently used entries, bounded by their number and their total weight."""

    def __init__(self, max_entries: int, max_weight: int = 0) -> None:
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._max_entries = max_entries
        self._max_weight = max_weight
        self._weight = 0

    def put(self, key: Hashable, value: V, weight: int = 0) -> None:
        replaced = self._entries.pop(key, None)
        self._entries[key] = (value, weight)
        self._weight += weight if replaced is None else weight - replaced[1]
        while len(self._entries) > self._max_entries or (self._weight > self._max_weight and len(self._entries) > 1):
            self._weight -= self._entries.popitem(last=False)[1][1]

    def get(self, key: Hashable) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def drop_where(self, is_meant: Callable[[Any, V], bool]) -> None:
        """Drop the entries that are meant, by their key and value. It looks at all."""
        for key in [key for key, (value, _) in self._entries.items() if is_meant(key, value)]:
            self.drop(key)

    def drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._weight -= entry[1]
