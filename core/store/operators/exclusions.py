"""What operators excluded from learning."""

from datetime import datetime

from sqlalchemy import insert, select

from core import codec
from core.clock import from_micros, to_micros
from core.operations.exclusions import Excluded, Exclusion
from core.store.database import tables
from core.store.database.repository import Repository

_table = tables.exclusions
_encode = codec.encoder().encode
_decode = codec.decoder(Exclusion).decode


class ExclusionsReader(Repository):
    def after(self, exclusion_id: int = 0) -> list[Excluded]:
        """Return the exclusions that were ordered after this one, the oldest first."""
        query = select(_table).where(_table.c.exclusion_id > exclusion_id).order_by(_table.c.exclusion_id)
        return [
            Excluded(
                exclusion_id=row.exclusion_id,
                what=_decode(row.record),
                why=row.why,
                by=row.by,
                at=from_micros(row.at),
            )
            for row in self._connection.execute(query)
        ]


class Exclusions(ExclusionsReader):
    """The exclusions: entries are only added."""

    def add(self, what: Exclusion, why: str, by: str, now: datetime) -> int:
        """Store an exclusion, and return its number: the highest, where who adds holds the history of releases."""
        values = {"record": _encode(what), "why": why, "by": by, "at": to_micros(now)}
        result = self._connection.execute(insert(_table).values(values))
        assert result.inserted_primary_key is not None
        self._wake_watchers()
        return int(result.inserted_primary_key[0])
