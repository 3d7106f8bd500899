"""A map that keeps the entries that were used last."""

import math
import sys
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

V = TypeVar("V")
ENTRY_BYTES: Final = 160
"""What an entry takes beside its texts."""
_NOTHING: Final = (None, 0)


def bytes_of(*texts: str) -> int:
    """Return about how many bytes an entry of these texts takes: clients choose some of them."""
    return ENTRY_BYTES + sum(map(sys.getsizeof, texts))


class RecentlyUsed(Generic[V]):
    """A map of the most recently used entries, bounded by their total weight. The newest stays in any case."""

    def __init__(self, max_weight: float = math.inf) -> None:
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._max_weight = max_weight
        self.weight = 0

    def put(self, key: Hashable, value: V, weight: int) -> None:
        self.weight += weight - self._entries.pop(key, _NOTHING)[1]
        self._entries[key] = (value, weight)
        while self.weight > self._max_weight and len(self._entries) > 1:
            self.drop_oldest()

    def get(self, key: Hashable) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def drop(self, key: Hashable) -> int:
        """Drop the entry, if there is one, and return what it weighed."""
        weight = self._entries.pop(key, _NOTHING)[1]
        self.weight -= weight
        return weight

    def drop_oldest(self) -> int:
        return self.drop(next(iter(self._entries)))
