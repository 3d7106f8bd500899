"""The progress of a stage that ends its work in another order than it began it."""

from collections.abc import Mapping

from core.ports import TopicPartition


class Progress:
    def __init__(self, starts: Mapping[TopicPartition, int]) -> None:
        self._next = dict(starts)
        self._pending: dict[TopicPartition, set[int]] = {source: set() for source in starts}

    def begin(self, source: TopicPartition, offset: int) -> None:
        self._next[source] = offset + 1
        self._pending[source].add(offset)

    def end(self, source: TopicPartition, offset: int) -> None:
        self._pending[source].remove(offset)

    def reached(self) -> dict[TopicPartition, int]:
        """Return, for each partition, the offset before which all is done."""
        return {source: min(self._pending[source], default=following) for source, following in self._next.items()}
