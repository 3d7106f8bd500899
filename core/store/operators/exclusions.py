"""What operators excluded from learning."""

from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import func, insert, select

from core import codec
from core.clock import from_micros, to_micros
from core.ids import PolicyRef
from core.operations.exclusions import NO_FINDINGS, Excluded, Exclusion, Findings
from core.store.database import tables
from core.store.database.repository import Repository

_table = tables.exclusions
_encode = codec.encoder().encode
_decode = codec.decoder(tuple[Exclusion, Findings]).decode
_decode_alone = codec.decoder(Exclusion).decode  # earlier builds stored no findings
_FAILED: Final = ("refused", "unavailable", "unknown_version")


class Left(NamedTuple):
    """Because of which exclusion a line of versions was left behind."""

    exclusion_id: int
    why: str


class _Led(msgspec.Struct, frozen=True):
    """Of what an exclusion found, the versions; the rewards may be many."""

    left: tuple[PolicyRef, ...] = ()
    order_id: int | None = None


_decode_led = codec.decoder(tuple[msgspec.Raw, _Led]).decode


class ExclusionsReader(Repository):
    def after(self, exclusion_id: int = 0) -> list[Excluded]:
        """Return the exclusions that were ordered after this one, the oldest first."""
        query = select(_table).where(_table.c.exclusion_id > exclusion_id).order_by(_table.c.exclusion_id)
        return [_excluded(row) for row in self._connection.execute(query)]

    def newest(self) -> int:
        """Return the number of the newest exclusion; 0 where there is none."""
        return self._connection.execute(select(func.max(_table.c.exclusion_id))).scalar() or 0

    def left(self) -> dict[PolicyRef, Left]:
        """Return of each line of versions that was left behind the first one, and because of which exclusion.

        An exclusion whose way back was refused has left nothing behind."""
        found: dict[PolicyRef, Left] = {}
        for row in self._connection.execute(select(_table).order_by(_table.c.exclusion_id)):
            led = _led(row.record)
            if led.left and not self.has_failed(led.order_id):
                found |= {version: Left(row.exclusion_id, row.why) for version in led.left if version not in found}
        return found

    def has_failed(self, order_id: int | None) -> bool:
        """Return whether an exclusion's order to go back was refused: what it had found still serves then."""
        if order_id is None:
            return False
        orders = tables.orders
        query = select(orders.c.error_code).where(orders.c.order_id == order_id)
        return self._connection.execute(query).scalar() in _FAILED


class Exclusions(ExclusionsReader):
    """The exclusions: entries are only added."""

    def add(self, what: Exclusion, why: str, by: str, now: datetime, found: Findings = NO_FINDINGS) -> int:
        """Store an exclusion, and return its number: the highest, if the caller holds the history of releases."""
        values = {"record": _encode((what, found)), "why": why, "by": by, "at": to_micros(now)}
        result = self._connection.execute(insert(_table).values(values))
        assert result.inserted_primary_key is not None
        self._wake_watchers()
        return int(result.inserted_primary_key[0])


def _led(record: bytes) -> _Led:
    try:
        return _decode_led(record)[1]
    except msgspec.ValidationError:
        return _Led()  # of before anything was found


def _excluded(row: Any) -> Excluded:
    try:
        what, found = _decode(row.record)
    except msgspec.ValidationError:
        what, found = _decode_alone(row.record), NO_FINDINGS
    return Excluded(
        exclusion_id=row.exclusion_id, what=what, found=found, why=row.why, by=row.by, at=from_micros(row.at)
    )
