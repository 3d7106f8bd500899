"""Counts of the last minute, in slots of time that are the same for every API replica."""

import time
from collections import Counter
from collections.abc import Mapping

from core.ids import Namespace

SLOT_S = 5
SLOTS = 12  # a minute, including the slot that is under way

Slot = tuple[Namespace, int]


class Slots:
    """The slots of one process, used from one thread."""

    def __init__(self) -> None:
        self._slots: dict[Slot, Counter[str]] = {}
        self._changed: set[Slot] = set()

    def count(self, namespace: Namespace, name: str) -> None:
        slot = namespace, _now()
        counts = self._slots.get(slot)
        if counts is None:
            self._drop_old()
            counts = self._slots[slot] = Counter()
        counts[name] += 1
        self._changed.add(slot)

    def merge(self, slots: Mapping[Slot, Mapping[str, int]]) -> None:
        """Add what was counted elsewhere."""
        for slot, counts in slots.items():
            self._slots.setdefault(slot, Counter()).update(counts)
            self._changed.add(slot)
        self._drop_old()

    def take_all(self) -> dict[Slot, Mapping[str, int]]:
        """Return all counts, and begin anew."""
        self._drop_old()
        slots, self._slots, self._changed = self._slots, {}, set()
        return dict(slots)

    def totals(self, namespace: Namespace) -> Mapping[str, int]:
        total: Counter[str] = Counter()
        for slot in recent_slots(namespace):
            total.update(self._slots.get(slot, {}))
        return total

    def take_changed(self) -> dict[Slot, Mapping[str, int]]:
        """Return the slots that changed since the last call, each with its present counts."""
        self._drop_old()
        changed, self._changed = self._changed, set()
        return {slot: self._slots[slot] for slot in changed if slot in self._slots}

    def put_back(self, slots: Mapping[Slot, object]) -> None:
        """Mark slots as changed again, after they were taken but could not be sent."""
        self._changed.update(slots)

    def _drop_old(self) -> None:
        oldest = _now() - SLOTS
        self._slots = {slot: counts for slot, counts in self._slots.items() if slot[1] > oldest}


def recent_slots(namespace: Namespace) -> list[Slot]:
    now = _now()
    return [(namespace, number) for number in range(now - SLOTS + 1, now + 1)]


def _now() -> int:
    return int(time.time() // SLOT_S)  # by the wall clock: replicas on several machines mean the same slot
