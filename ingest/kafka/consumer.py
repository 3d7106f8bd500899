"""Consumer groups on Kafka: members share the partitions, and learn in `poll` which they gain and lose."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, Literal

from kafka import OffsetAndMetadata
from kafka import TopicPartition as KafkaPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.base import MemberState
from kafka.errors import CommitFailedError, RebalanceInProgressError

from core import telemetry
from core.errors import Fenced, LogUnavailable
from core.events import Topic
from core.ports import RebalanceListener, Record, TopicPartition
from core.settings import KafkaSettings
from ingest.kafka.clients import explained
from ingest.kafka.reader import JOIN_S, Found, KafkaReader, RoundConsumer
from ingest.sealing import Seals

_HEARTBEAT_MS: Final = 1000  # how soon a member learns that others have come or gone
_Kind = Literal["assigned", "revoked", "lost"]


class _Notes(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """The reports of Kafka's rebalance thread, for the polling thread to act on.

    Newly assigned partitions are paused until then."""

    def __init__(self, client: RoundConsumer) -> None:
        self._client = client
        self.waiting: deque[tuple[_Kind, frozenset[KafkaPartition]]] = deque()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._client.pause(*assigned)
        self.waiting.append(("assigned", frozenset(assigned)))

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.waiting.append(("revoked", frozenset(revoked)))

    async def on_partitions_lost(self, lost: Any) -> None:
        self.waiting.append(("lost", frozenset(lost)))


class KafkaMember(KafkaReader):
    """Implements core.ports.Consumer."""

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        topics: Sequence[Topic],
        count: Callable[[Topic], int],
        listener: RebalanceListener | None,
        seals: Seals | None = None,
    ) -> None:
        super().__init__(settings, topics, count, seals)
        self._group = group
        self._listener = listener
        self._notes: _Notes | None = None
        self._arriving: set[TopicPartition] = set()  # assigned, and the listener does not know yet
        self._read_last: Record | None = None

    # ------------------------------------------------------------------------------------------ the port

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        records = super().poll(max_records, timeout_s)
        if records:
            self._read_last = records[-1]
        self._measure()
        return records

    def committed(self, partition: TopicPartition) -> int | None:
        client = self._open()
        with explained():
            found: int | None = client.committed(self._theirs(partition), timeout_ms=int(1000 * self._timeout_s))
        return found

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        client = self._open()
        if not offsets:
            return
        strange = offsets.keys() - self._positions.keys()
        if strange:
            raise Fenced(f"group {self._group}: {', '.join(map(str, sorted(strange)))} are not ours")
        state = self._finish_rebalance(client, self._timeout_s)
        if state is MemberState.UNJOINED or self._has_lost(offsets.keys()):
            raise Fenced(f"group {self._group} has gone on without this member")
        if state is MemberState.REBALANCING:
            raise LogUnavailable(f"group {self._group} shares its partitions anew; nothing was committed")
        wanted = {self._theirs(source): OffsetAndMetadata(offset, "", -1) for source, offset in offsets.items()}
        with explained():
            try:
                client.commit(wanted, timeout_ms=int(1000 * self._timeout_s))
            except CommitFailedError as error:
                if any(isinstance(cause, RebalanceInProgressError) for cause in error.args):
                    raise LogUnavailable(
                        f"group {self._group} shares its partitions anew; nothing was committed"
                    ) from error
                raise Fenced(f"group {self._group} has gone on without this member") from error

    def close(self) -> None:
        """Leave the group. Closing twice does nothing."""
        if self._closed or self._client is None:
            self._closed = True
            return
        state = MemberState.REBALANCING
        try:
            state = self._finish_rebalance(self._client, JOIN_S)
            self._pass_all_on()
            self._tell("lost" if state is MemberState.UNJOINED else "revoked", frozenset(self._positions))
        finally:  # a broker that waits for others to join hears of nothing else meanwhile, nor that we leave
            self._close(0.0 if state is MemberState.REBALANCING else self._timeout_s)

    # ------------------------------------------------------------------------------------------ membership

    def _options(self) -> dict[str, Any]:
        session_ms = int(1000 * self._settings.client.session_timeout_s)
        return {
            **super()._options(),
            "group_id": self._settings.prefix + self._group,
            "partition_assignment_strategy": [CooperativeStickyAssignor],
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": min(session_ms // 4, _HEARTBEAT_MS),
            "max_poll_interval_ms": int(1000 * self._settings.client.max_poll_interval_s),
        }

    def _begin(self, client: RoundConsumer, counts: Mapping[Topic, int]) -> None:
        self._notes = _Notes(client)
        client.subscribe(list(self._topics), listener=self._notes)
        # A member that leads its group shares what it knows of; asking makes it know all partitions before it joins.
        client.beginning_offsets(self._all_of(counts), timeout_ms=int(1000 * self._timeout_s))

    def _after_round(self, client: RoundConsumer, found: Found) -> Found:
        """Report what happened to the group. If the listener sought, records fetched before are fetched again."""
        assert self._notes is not None
        if not self._notes.waiting and not self._arriving:
            return found
        try:
            self._pass_all_on()
            if self._arriving:
                self._welcome(client)
        finally:
            self._put_back(client, found)
        return {}

    def _finish_rebalance(self, client: RoundConsumer, timeout_s: float) -> MemberState:
        """Wait for the rebalance to end: nothing can be committed during it.

        Partitions that it revokes are still this member's until the next round."""
        deadline_s = time.monotonic() + timeout_s
        while client.group_metadata().state is MemberState.REBALANCING and time.monotonic() < deadline_s:
            with explained():
                self._put_back(client, client.round(1, 0.0))
        return client.group_metadata().state

    def _put_back(self, client: RoundConsumer, found: Found) -> None:
        for source in self._positions.keys() & set(map(self._ours, found)):
            self._go_to(client, source, self._positions[source])

    def _has_lost(self, sources: Iterable[TopicPartition]) -> bool:
        assert self._notes is not None
        lost = {self._ours(one) for kind, partitions in self._notes.waiting if kind == "lost" for one in partitions}
        return not lost.isdisjoint(sources)

    def _pass_all_on(self) -> None:
        assert self._notes is not None
        while self._notes.waiting:
            self._pass_on(*self._notes.waiting.popleft())

    def _pass_on(self, kind: _Kind, partitions: frozenset[KafkaPartition]) -> None:
        sources = frozenset(map(self._ours, partitions))
        if kind == "assigned":
            self._arriving |= sources
            return
        self._arriving -= sources
        self._tell(kind, sources & self._positions.keys())

    def _tell(self, kind: Literal["revoked", "lost"], sources: frozenset[TopicPartition]) -> None:
        """Tell the listener which partitions are gone; they are gone whatever it does."""
        if not sources:
            return
        telemetry.REBALANCES.labels(group=self._group, kind=kind).inc()
        try:
            if self._listener is not None:
                (self._listener.on_revoked if kind == "revoked" else self._listener.on_lost)(sources)
        finally:
            self._forget(sources)

    def _forget(self, sources: Iterable[TopicPartition]) -> None:
        for source in sources:
            del self._positions[source]
            self._newer.pop(source, None)

    def _welcome(self, client: RoundConsumer) -> None:
        """Tell the listener of new partitions. If it fails, the next poll tells it again."""
        positions = {}
        for source in self._arriving:
            with explained():
                positions[source] = client.position(self._theirs(source), timeout_ms=int(1000 * self._timeout_s))
        if None in positions.values():
            raise LogUnavailable(f"group {self._group}: Kafka does not say where to begin")
        self._positions |= positions
        with ExitStack() as undo:
            undo.callback(self._forget, positions)
            if self._listener is not None:
                self._listener.on_assigned(frozenset(positions))
            undo.pop_all()
        telemetry.REBALANCES.labels(group=self._group, kind="assigned").inc()
        self._arriving.clear()
        client.resume(*map(self._theirs, positions))

    def _measure(self) -> None:
        assert self._client is not None
        behind = dict.fromkeys(self._topics.values(), 0)
        for source, position in self._positions.items():
            behind[source.topic] += max(0, (self._client.highwater(self._theirs(source)) or 0) - position)
        for topic, count in behind.items():
            telemetry.LOG_LAG.labels(group=self._group, topic=topic).set(count)
        is_behind = self._read_last is not None and any(behind.values())
        age_s = time.time() - self._read_last.appended_at.timestamp() if is_behind and self._read_last else 0.0
        telemetry.LOG_LAG_SECONDS.labels(group=self._group).set(max(0.0, age_s))
