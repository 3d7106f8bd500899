"""The audit trail: entries are appended, and neither changed nor deleted."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Row, insert, select

from core.operations.audit import NOTHING, AuditHead, Deed, StoredEntry, chain
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository

_table = tables.audit
_PART: Final = 1000  # rows read at once


class AuditReader(Repository):
    def head(self) -> AuditHead:
        """Return the newest entry's number and digest; number 0 before the first."""
        query = select(_table.c.sequence, _table.c.digest).order_by(_table.c.sequence.desc()).limit(1)
        row = self._connection.execute(query).one_or_none()
        return AuditHead(0, NOTHING) if row is None else AuditHead(row.sequence, row.digest)

    def digest_of(self, sequence: int) -> str | None:
        """Return the digest of an entry, or None where there is none of this number."""
        query = select(_table.c.digest).where(_table.c.sequence == sequence)
        return self._connection.execute(query).scalar()

    def newest(self, namespace: str | None, before: int, limit: int) -> list[StoredEntry]:
        """Return entries before this number, the newest first; `namespace` None means those of all."""
        query = select(_table).where(_table.c.sequence < before).order_by(_table.c.sequence.desc()).limit(limit)
        if namespace is not None:
            query = query.where(_table.c.namespace == namespace)
        return [_stored(row) for row in self._connection.execute(query)]

    def in_order(self) -> Iterator[StoredEntry]:
        """Yield all entries, the oldest first."""
        query = select(_table).order_by(_table.c.sequence).execution_options(yield_per=_PART)
        yield from map(_stored, self._connection.execute(query))


class Audit(AuditReader):
    """The trail. Whoever appends holds it until the transaction ends, and so appends as the last thing in it."""

    def append(self, deeds: Sequence[Deed]) -> AuditHead:
        """Append what was done, and return the new head."""
        hold(self._connection, Lock.AUDIT)
        head = self.head()
        entries = list(chain(deeds, head.sequence, head.digest))
        if not entries:
            return head
        rows = [{name: getattr(each, name) for name in each.__struct_fields__} for each in entries]
        self._connection.execute(insert(_table), rows)
        return AuditHead(entries[-1].sequence, entries[-1].digest)


def _stored(row: Row[Any]) -> StoredEntry:
    return StoredEntry(row.sequence, row.namespace, row.record, row.digest)
