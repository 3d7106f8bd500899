"""Dead letters: records that could not be used, kept whole for operators."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, delete, select

from core.clock import from_micros, to_micros
from core.events import DeadLetter
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import insert_new

_LETTER_BYTES: Final = 4096  # what a dead letter holds besides the record's bytes: reason, place and time


class DeadLettersReader(Repository):
    """The records that were set aside."""

    def newest(self, limit: int) -> list[DeadLetter]:
        """Return the newest dead letters, the newest first."""
        table = tables.dead_letters
        rows = self._connection.execute(
            select(table).order_by(table.c.at.desc(), table.c.record_offset.desc()).limit(limit)
        )
        return [_letter(row) for row in rows]

    def get(self, topic: str, partition: int, offset: int) -> DeadLetter | None:
        row = self._connection.execute(select(tables.dead_letters).where(*_is(topic, partition, offset))).one_or_none()
        return None if row is None else _letter(row)


class DeadLetters(DeadLettersReader):
    """The dead letters: readers of the log set records aside here, and operators bring them back."""

    def put(self, letters: Sequence[DeadLetter]) -> int:
        """Store dead letters, and return how many were not stored before."""
        rows = [
            {
                "topic": letter.topic,
                "partition": letter.partition,
                "record_offset": letter.offset,
                "reason": letter.reason.replace("\0", "\\0"),  # Postgres' text cannot hold it
                "raw": letter.raw,
                "at": to_micros(letter.at),
            }
            for letter in letters
        ]
        return insert_new(self._connection, tables.dead_letters, rows)

    def forget(self, letter: DeadLetter) -> None:
        """Delete a dead letter whose record went back to the log."""
        self._connection.execute(delete(tables.dead_letters).where(*_is(letter.topic, letter.partition, letter.offset)))


def as_announced(letter: DeadLetter, limit: int | None) -> DeadLetter:
    """Return a dead letter as it fits into its topic, without the record's bytes if those would exceed `limit`.

    The log may hold a record that is larger than we may append; the store keeps it whole. `limit` is the log's
    `max_record_bytes`."""
    if limit is None or len(letter.raw) + _LETTER_BYTES <= limit:
        return letter
    reason = f"{letter.reason} ({len(letter.raw)} bytes, too large for this topic: the store has them)"
    return msgspec.structs.replace(letter, reason=reason, raw=b"")


def _is(topic: str, partition: int, offset: int) -> tuple[ColumnElement[bool], ...]:
    table = tables.dead_letters
    return table.c.topic == topic, table.c.partition == partition, table.c.record_offset == offset


def _letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        topic=row.topic,
        partition=row.partition,
        offset=row.record_offset,
        reason=row.reason,
        raw=row.raw,
        at=from_micros(row.at),
    )
