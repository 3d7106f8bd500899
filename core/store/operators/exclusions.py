"""What operators excluded from learning."""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import func, insert, select

from core import codec
from core.clock import from_micros, to_micros
from core.operations.exclusions import NO_FINDINGS, Excluded, Exclusion, Findings
from core.store.database import tables
from core.store.database.repository import Repository

_table = tables.exclusions
_encode = codec.encoder().encode
_decode = codec.decoder(tuple[Exclusion, Findings]).decode
_decode_alone = codec.decoder(Exclusion).decode  # earlier builds stored no findings


class ExclusionsReader(Repository):
    def after(self, exclusion_id: int = 0) -> list[Excluded]:
        """Return the exclusions that were ordered after this one, the oldest first."""
        query = select(_table).where(_table.c.exclusion_id > exclusion_id).order_by(_table.c.exclusion_id)
        return [_excluded(row) for row in self._connection.execute(query)]

    def newest(self) -> int:
        """Return the number of the newest exclusion; 0 where there is none."""
        return self._connection.execute(select(func.max(_table.c.exclusion_id))).scalar() or 0


class Exclusions(ExclusionsReader):
    """The exclusions: entries are only added."""

    def add(self, what: Exclusion, why: str, by: str, now: datetime, found: Findings = NO_FINDINGS) -> int:
        """Store an exclusion, and return its number: the highest, if the caller holds the history of releases."""
        values = {"record": _encode((what, found)), "why": why, "by": by, "at": to_micros(now)}
        result = self._connection.execute(insert(_table).values(values))
        assert result.inserted_primary_key is not None
        self._wake_watchers()
        return int(result.inserted_primary_key[0])


def _excluded(row: Any) -> Excluded:
    try:
        what, found = _decode(row.record)
    except msgspec.ValidationError:
        what, found = _decode_alone(row.record), NO_FINDINGS
    return Excluded(
        exclusion_id=row.exclusion_id, what=what, found=found, why=row.why, by=row.by, at=from_micros(row.at)
    )
