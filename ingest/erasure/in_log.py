"""Erasure in a log whose records can be rewritten: each becomes a tombstone at its offset.

Three steps. The log is rewritten up to where it ends; then all that reads it has to pass that end, as it may have read
words before; then what came meanwhile (out of a spool, or by a reader that repeats what it read) is rewritten, too."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from core.codec import encode
from core.events import Event, Topic
from core.ids import SessionId
from core.operations.erasures import Erasure, Step, Subjects, is_erased
from core.ports import EventLog, Record, Store, TopicPartition
from core.records.erasing import NotYet, digest_of, subjects_of
from core.records.whole_log import read_whole

TOPICS: Final = (Topic.TURNS, Topic.REWARDS, Topic.DEAD_LETTERS)
"""Turns first: they tell whose the rest is."""
_TAKEN: Final = b""
"""What is left of a record that does not decode, and names what is erased."""
LOG, READERS = "log", "readers"
Widen = Callable[[Erasure, Sequence[SessionId]], None]


class RewritableLog(Protocol):
    def rewrite(self, partition: TopicPartition, records: Mapping[int, bytes]) -> None: ...

    def scrub(self) -> None: ...


class InLog:
    """The first pass, and the last one, over the whole log."""

    def __init__(self, log: EventLog, store: Store, file: RewritableLog, widen: Widen, name: str = LOG) -> None:
        """`widen` is told of sessions that the store did not know."""
        self.name = name
        self._log, self._store, self._file, self._widen = log, store, file, widen

    def erase(self, order: Erasure) -> Step:
        before = order.steps.get(LOG, Step())
        ends = {str(source): self._log.end(source) for source in sources_of(self._log, TOPICS)}
        subjects = subjects_of(self._store, order)
        turns = list(self._rewrite(Topic.TURNS, subjects))
        if new := sorted(set(subjects.found(order.namespace)) - set(order.sessions)):
            self._widen(order, new)
            turns = list(self._rewrite(Topic.TURNS, subjects))  # what they said before the turn that told whose it is
        found = turns + [each for topic in TOPICS[1:] for each in self._rewrite(topic, subjects)]
        self._file.scrub()
        removed = max(len(found), before.removed.get("records", 0))
        return Step(removed={"records": removed}, digest=digest_of(found), marks=ends)

    def _rewrite(self, topic: Topic, subjects: Subjects) -> Iterator[str]:
        for source, records in records_of(self._log, topic):
            left: dict[int, bytes] = {}
            for record in records:
                raw = left_of(record, subjects)
                if raw is not None:
                    yield f"{source} {record.offset}"
                    if raw != record.raw:
                        left[record.offset] = raw
            if left:
                self._file.rewrite(source, left)


def sources_of(log: EventLog, topics: Sequence[Topic]) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for topic in topics for index in range(log.partitions(topic))]


def records_of(log: EventLog, topic: Topic) -> Iterator[tuple[TopicPartition, list[Record]]]:
    """Yield a topic's records up to now, some of one partition at a time."""
    for records in read_whole(log, topic):
        by_source: dict[TopicPartition, list[Record]] = {}
        for record in records:
            by_source.setdefault(record.source, []).append(record)
        yield from by_source.items()


class Meant(Protocol):
    """What is to go from a log: what is erased, or what is too old."""

    def names(self, raw: bytes) -> bool: ...

    def are_of(self, event: Event) -> bool: ...

    def left(self, event: Event) -> Event: ...


def left_of(record: Record, subjects: Meant) -> bytes | None:
    """Return the bytes that are left of a record of which something is to go, or went; None of any other."""
    if record.event is None:
        return _TAKEN if record.raw == _TAKEN or subjects.names(record.raw) else None
    if record.topic is Topic.DEAD_LETTERS:
        raw = getattr(record.event, "raw", b"")
        is_ours = is_erased(record.event) or subjects.names(raw)
    else:
        is_ours = subjects.are_of(record.event)
    if not is_ours:
        return None
    left = subjects.left(record.event)
    return record.raw if left is record.event else encode(left)


class Readers:
    """Waits until all that read the log have passed where it ended when it was rewritten, and spools are empty."""

    name = READERS

    def __init__(self, store: Store, groups: Sequence[str], spools: Sequence[Path], *, archives: bool) -> None:
        """Wait for `groups`, which keep in the store how far they have read turns, and where it `archives` for that."""
        self._store, self._groups, self._spools, self._archives = store, groups, spools, archives

    def erase(self, order: Erasure) -> Step:
        ends = order.steps[LOG].marks
        with self._store.look() as view:
            reached = {group: view.offsets.of_group(group) for group in self._groups}
            if self._archives:
                reached["archive"] = {source: known.next_offset for source, known in view.archived.reached().items()}
        for group, offsets in reached.items():
            for name, end in ends.items():
                topic, _, partition = name.rpartition(":")
                if topic == Topic.DEAD_LETTERS or (topic == Topic.REWARDS and group != "archive"):
                    continue
                behind = end - offsets.get(TopicPartition(Topic(topic), int(partition)), 0)
                if behind > 0:
                    raise NotYet(f"{group} has {behind} records of {name} to read")
        for spool in self._spools:
            self._delete_torn(spool, order)
            if spool.is_dir() and any(path.suffix in (".open", ".sealed") for path in spool.rglob("*")):
                raise NotYet(f"{spool.name}: what waits there for the log")
        return Step(removed={})

    def _delete_torn(self, spool: Path, order: Erasure) -> None:
        """Delete what a crash left of it in a spool, for whoever wanted to look; the log has its whole records."""
        subjects = subjects_of(self._store, order)
        for path in spool.rglob("*.torn") if spool.is_dir() else ():
            if subjects.names(path.read_bytes()):
                path.unlink()
