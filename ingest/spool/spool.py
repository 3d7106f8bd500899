"""The spool: appends go there, durably, while the log is down, and follow in order when it is back.

Once something waits in the spool, everything appended later waits behind it. A crash between a segment's append to the
log and its removal appends the segment again: the log is then read at least once, and readers know ids. When less than
a segment is left, new appends wait until it is in the log, and then go there directly: else a spool under load would
never be empty."""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from core import telemetry
from core.codec import decode, encode
from core.errors import LogError, LogUnavailable, TooLarge
from core.events import Event, Topic
from core.ports import Consumer, EventLog, LogReader, Position, RebalanceListener, Record, TopicPartition
from ingest.group_commit import GroupCommit
from ingest.routing import partition_of
from ingest.spool.files import SegmentFiles, SpoolFile, frame_bytes, read_segment
from ingest.spool.handover import AppendBarrier

_MAX_BATCH_ITEMS = 512
_SEGMENT_BYTES = 1 << 20
_APPEND_RECORDS = 500  # drained at a time: as many are repeated when the log goes away again
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 2.0
_AWAY = (LogUnavailable, LogError)  # a log whose file is corrupt is away as well
logger = logging.getLogger(__name__)


class _Spooled(msgspec.Struct, frozen=True, array_like=True):
    topic: Topic
    raw: bytes


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_Spooled).decode
_Payloads = tuple[bytes, ...]  # of one append; () asks for the open segment to be sealed


class SpoolingLog:
    """Implements core.ports.EventLog around another log, whose appends it backs up. Reading uses the log alone."""

    def __init__(self, log: EventLog, directory: Path, max_bytes: int) -> None:
        self._log = log
        self._directory = directory
        self._max_bytes = max_bytes
        self._files = SegmentFiles(directory, _SEGMENT_BYTES)
        self._changed = threading.Condition()  # guards the four below
        self._depth_records = 0
        self._depth_bytes = 0
        self._reason: str | None = None  # why the log does not take appends
        self._closing = False
        self._done: tuple[Path | None, Counter[Topic]] = (None, Counter())  # of a segment: what is in the log already
        self._gate = AppendBarrier()
        self._count_what_is_left()
        self._spool = GroupCommit[_Payloads, None](f"spool {directory}", self._write, _MAX_BATCH_ITEMS)
        self._drainer = threading.Thread(target=self._drain, name="spool-drain", daemon=True)
        self._drainer.start()

    @property
    def max_record_bytes(self) -> int | None:
        return self._log.max_record_bytes

    # ------------------------------------------------------------------------------------------ what operators see

    @property
    def depth_records(self) -> int:
        """The number of records that wait for the log."""
        return self._depth_records

    @property
    def state(self) -> str:
        """The state for readiness: "ok", or what is wrong."""
        with self._changed:
            if self._depth_records == 0 and self._reason is None:
                return "ok"
            used = f"{self._depth_records} records, {self._depth_bytes} of {self._max_bytes} bytes, wait in the spool"
            return f"{used}: {self._reason or 'draining'}"

    # ------------------------------------------------------------------------------------------ appending

    async def append(self, topic: Topic, event: Event) -> Position:
        """Append records. Raises LogUnavailable when neither log nor spool accepts them."""
        await self._gate.passed()
        if self._direct():
            try:
                position = await self._log.append(topic, event)
            except _AWAY as error:
                self._note(error)
            else:
                self._note(None)
                return position
        payloads = self._reserve(topic, [event])
        await self._spool.submit(payloads)
        return self._waiting(topic, event, payloads[0])

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        self._gate.passed_blocking()
        if self._direct():
            try:
                positions = self._log.append_blocking(topic, events)
            except _AWAY as error:
                self._note(error)
            else:
                self._note(None)
                return positions
        payloads = self._reserve(topic, events)
        self._spool.submit_blocking(payloads)
        return [self._waiting(topic, *each) for each in zip(events, payloads, strict=True)]

    def _direct(self) -> bool:
        return self._depth_records == 0

    def _waiting(self, topic: Topic, event: Event, payload: bytes) -> Position:
        try:
            partition = partition_of(event, self._log.partitions(topic))
        except LogUnavailable:  # and has never been there since we started
            partition = -1
        return Position(topic=topic, partition=partition, offset=-1, size=len(payload))

    def _note(self, error: Exception | None) -> None:
        reason = None if error is None else str(error)
        if reason == self._reason:
            return
        with self._changed:
            self._reason = reason
        if reason is not None:
            logger.warning("the log takes no appends, the spool does: %s", reason)

    def _reserve(self, topic: Topic, events: Sequence[Event]) -> _Payloads:
        """Reserve room and a place in the order of the spool: from here on nothing is appended directly."""
        raws = [encode(event) for event in events]
        limit = self._log.max_record_bytes
        for raw in raws:
            if limit is not None and len(raw) > limit:  # it would stay here for ever
                raise TooLarge(f"a record of {len(raw)} bytes; the log takes {limit}", code="body_too_large")
        payloads = tuple(_pack(_Spooled(topic, raw)) for raw in raws)
        size = sum(map(frame_bytes, payloads))
        with self._changed:
            if self._depth_bytes + size > self._max_bytes:
                full = f"the spool in {self._directory} holds {self._depth_bytes} of {self._max_bytes} bytes"
                raise LogUnavailable(f"{self._reason or 'the log is catching up'}; {full}")
            self._account(len(payloads), size)
        return payloads

    def _release(self, payloads: Sequence[bytes]) -> None:
        with self._changed:
            self._account(-len(payloads), -sum(map(frame_bytes, payloads)))

    def _account(self, records: int, size: int) -> None:
        self._depth_records += records
        self._depth_bytes += size
        telemetry.SPOOLED.set(self._depth_records)
        telemetry.SPOOL_BYTES.set(self._depth_bytes)
        self._changed.notify_all()

    # ------------------------------------------------------------------------------------------ the writing thread

    def _write(self, items: Sequence[_Payloads]) -> Sequence[None]:
        payloads = [payload for item in items for payload in item]
        try:
            if payloads:
                self._files.append(payloads)
            if () in items:
                self._files.seal()
        except OSError as error:
            self._release(payloads)
            raise LogUnavailable(f"the log is down, and so is the spool in {self._directory}: {error}") from error
        return [None] * len(items)

    # ------------------------------------------------------------------------------------------ the draining thread

    def _count_what_is_left(self) -> None:
        """Count what an earlier process left."""
        for path in self._files.sealed():
            segment = read_segment(path)
            if segment.torn_bytes:
                logger.warning("%s: %d bytes behind the last whole record", path, segment.torn_bytes)
                telemetry.SPOOL_TORN_BYTES.inc(segment.torn_bytes)
            with self._changed:
                self._account(len(segment.payloads), sum(map(frame_bytes, segment.payloads)))
            if not segment.payloads:
                self._files.remove(segment)

    def _drain(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._depth_records > 0)
                if self._closing:
                    return
            try:
                self._drain_segments()
                retry_s = _FIRST_RETRY_S
            except (*_AWAY, OSError) as error:
                self._note(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def _drain_segments(self) -> None:
        paths = self._files.sealed()
        if paths:
            self._drain_sealed(paths)
            return
        with self._gate.shut():
            while self._depth_records:  # some may be on their way into the spool
                self._spool.submit_blocking(())
                self._drain_sealed(self._files.sealed())

    def _drain_sealed(self, paths: Sequence[Path]) -> None:
        for path in paths:
            segment = read_segment(path)
            self._append_segment(segment)
            self._files.remove(segment)
            if segment.payloads:  # an empty one, left by a write that failed, says nothing of the log
                self._note(None)
            self._release(segment.payloads)  # last: direct appends may follow from here on

    def _append_segment(self, segment: SpoolFile) -> None:
        """Append a segment topic by topic: the log has no order between topics.

        It continues after what an earlier attempt achieved."""
        if self._done[0] != segment.path:
            self._done = (segment.path, Counter())
        done, raws = self._done[1], defaultdict[Topic, list[bytes]](list)
        for item in map(_unpack, segment.payloads):
            raws[item.topic].append(item.raw)
        for topic, its in raws.items():
            while left := its[done[topic] : done[topic] + _APPEND_RECORDS]:
                self._log.append_blocking(topic, [decode(raw) for raw in left])
                done[topic] += len(left)

    # ------------------------------------------------------------------------------------------ the log's own

    def consumer(self, group: str, topics: Sequence[Topic], listener: RebalanceListener | None = None) -> Consumer:
        return self._log.consumer(group, topics, listener)

    def reader(self, topics: Sequence[Topic]) -> LogReader:
        return self._log.reader(topics)

    def partitions(self, topic: Topic) -> int:
        return self._log.partitions(topic)

    def earliest(self, partition: TopicPartition) -> int:
        return self._log.earliest(partition)

    def end(self, partition: TopicPartition) -> int:
        return self._log.end(partition)

    def offset_at(self, partition: TopicPartition, moment: datetime) -> int:
        return self._log.offset_at(partition, moment)

    def committed(self, group: str, partition: TopicPartition) -> int | None:
        return self._log.committed(group, partition)

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        self._log.delete_before(partition, offset)

    def restore(self, records: Sequence[Record]) -> None:
        self._log.restore(records)

    def skip_to(self, partition: TopicPartition, offset: int) -> None:
        self._log.skip_to(partition, offset)

    def close(self) -> None:
        """Close the spool and the log."""
        self.close_spool()
        self._log.close()

    def close_spool(self) -> None:
        """Close the spool alone. What waits in it stays for the next start."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._drainer.join()
        self._spool.close()
        self._files.seal()
