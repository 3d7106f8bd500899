"""Requests that wait for a slot: those of normal priority first, and of each class who came first."""

from collections import deque
from collections.abc import Iterator, Sequence

from serving.engines.local.sequence import Sequence as Request
from serving.engines.local.slots import SlotTable


class WaitingRequests:
    """Belongs to the engine's thread."""

    def __init__(self) -> None:
        self._normal: deque[Request] = deque()
        self._low: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._normal) + len(self._low)

    def __iter__(self) -> Iterator[Request]:
        return iter((*self._normal, *self._low))

    def add(self, new: Request) -> None:
        (self._low if new.is_low else self._normal).append(new)

    def put_back(self, paused: Request) -> None:
        """Let a request that was paused go on before those of its class that have not begun."""
        self._low.appendleft(paused)

    def drop_aborted(self) -> None:
        self._normal = deque(each for each in self._normal if not each.aborted)
        self._low = deque(each for each in self._low if not each.aborted)

    def in_the_way(self, running: Sequence[Request], slots: SlotTable) -> list[Request]:
        """Return the running requests of low priority that hold slots which others wait for, the newest first."""
        missing = len(self._normal) - slots.num_free
        newest_first = sorted((each for each in running if each.is_low), key=lambda each: -each.arrived_s)
        return newest_first[: max(missing, 0)]

    def next(self, slots: SlotTable) -> Request | None:
        """Take the next request that there is a slot for; None when there is none."""
        if self._normal:
            return self._normal.popleft() if slots.can_take() else None
        return self._low.popleft() if self._low and slots.can_take(is_low=True) else None
