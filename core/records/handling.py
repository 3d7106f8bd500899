"""The handling of records that their reader cannot use: found, tried again, and set aside with the reason.

Whatever one user's record does to the code that reads it, everybody else's records of the same batch are handled as if
it were not there. This is the one place that catches everything a record may make its reader raise; errors which say
that the machine, the log or the store is at fault are no record's, and are raised on."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from core import telemetry
from core.errors import LogError, SchemaMismatch, Unavailable
from core.events import DeadLetter, Topic
from core.ports import Clock, EventLog, Record, Store, TopicPartition
from core.store.dead_letters import as_announced
from core.store.work import Work

_NOBODYS: Final = (Unavailable, LogError, OSError, SchemaMismatch)
"""Errors that are no record's fault: outages, fences, newer builds' records, a full disk, a store with other tables."""
_REASON_CHARACTERS: Final = 500
_TRACEBACKS_S: Final = 10.0
T = TypeVar("T")
Writing = Callable[[Mapping[TopicPartition, int]], AbstractContextManager[Work]]
logger = logging.getLogger(__name__)


def failure_of(do: Callable[[], object]) -> Exception | None:
    """Run `do`, and return the exception that it raised, or None."""
    try:
        do()
    except Exception as error:  # noqa: BLE001  # what hostile data makes code raise is not known beforehand
        return error
    return None


def attempt(do: Callable[[], object], times: int = 1) -> Exception | None:
    """Try `do` up to `times` times, and return None once it succeeds, else the last exception.

    Raises errors that are no record's fault."""
    failure: Exception | None = None
    for _ in range(times):
        failure = failure_of(do)
        if isinstance(failure, _NOBODYS):
            raise failure
        if failure is None:
            break
    return failure


def take_all(
    items: Sequence[T], take: Callable[[Sequence[T]], object], refuse: Callable[[T, Exception], object], times: int
) -> None:
    """Pass all of `items` to `take`, in order, and those that it cannot take to `refuse`.

    `take` does nothing where it raises. Then the items are taken by halves, until those are found that fail alone; each
    of them is tried `times` times, then refused. Raises what is no item's fault, and what `refuse` raises; the items
    before are done then."""
    failure = attempt(lambda: take(items), 1 if len(items) > 1 else times)
    if failure is None:
        return
    if len(items) == 1:
        refuse(items[0], failure)
        return
    half = len(items) // 2
    take_all(items[:half], take, refuse, times)
    take_all(items[half:], take, refuse, times)


def set_aside(work: Work, log: EventLog, letters: Sequence[DeadLetter]) -> None:
    """Store dead letters, after announcing them in the log.

    A crash in between announces them again; none goes unannounced. Raises LogUnavailable: the transaction must not be
    committed then."""
    if not letters:
        return
    log.append_blocking(Topic.DEAD_LETTERS, [as_announced(letter, log.max_record_bytes) for letter in letters])
    new = work.dead_letters.put(letters)
    telemetry.DEAD_LETTERS.labels(topic=letters[0].topic).inc(new)
    for letter in letters:
        logger.error("%s:%d offset %d is set aside: %s", letter.topic, letter.partition, letter.offset, letter.reason)


class Culprits:
    """Finds the records that one stage cannot handle, and sets them aside."""

    def __init__(self, stage: str, log: EventLog, store: Store, clock: Clock, times: int) -> None:
        """Try each record `times` times before it is set aside."""
        self._stage, self._log, self._store, self._clock, self._times = stage, log, store, clock, times
        self._next_traceback_s = float("-inf")

    def find(self, records: Sequence[Record], take: Callable[[Sequence[Record]], object], writing: Writing) -> None:
        """Take all of `records` and set aside those that cannot be taken, in transactions opened by `writing`.

        Raises errors that are no record's fault."""

        def refuse(record: Record, failure: Exception) -> None:
            with writing({record.source: record.offset + 1}) as work:
                self._put(work, record, failure)

        take_all(records, take, refuse, self._times)

    def tried(self, record: Record, do: Callable[[], object]) -> bool:
        """Run `do` for a record, and return False if the record was set aside; for a reader whose work is in memory.

        Raises errors that are no record's fault."""
        failure = attempt(do, self._times)
        if failure is not None:
            self.put(record, failure)
        return failure is None

    def put(self, record: Record, failure: Exception) -> None:
        """Set a record aside. Raises LogUnavailable or StoreUnavailable: the caller tries again then."""
        with self._store.work() as work:
            self._put(work, record, failure)

    def _put(self, work: Work, record: Record, failure: Exception) -> None:
        telemetry.STAGE_FAILED_RECORDS.labels(part=self._stage).inc()
        if time.monotonic() >= self._next_traceback_s:  # a flood of them must not fill the disk
            self._next_traceback_s = time.monotonic() + _TRACEBACKS_S
            logger.error("%s: %s offset %d", self._stage, record.source, record.offset, exc_info=failure)
        set_aside(work, self._log, [self._letter(record, failure)])

    def _letter(self, record: Record, failure: Exception) -> DeadLetter:
        return DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=f"the {self._stage} cannot take it: {words_of(failure)}",
            raw=record.raw,
            at=self._clock.now(),
        )


def words_of(failure: BaseException) -> str:
    """Describe a failure by its kind and message, short and printable: it may quote what a client sent."""
    said = str(failure).encode(errors="backslashreplace").decode()
    return f"{type(failure).__name__}: {said}"[:_REASON_CHARACTERS]
