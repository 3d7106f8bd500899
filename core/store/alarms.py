"""Alarms and their outbox, and the reference turns that monitors compare recent turns with.

Every change of an alarm's state, whoever makes it, marks the alarm as untold; the monitors' stage then announces it in
the log."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row, insert, select, update

from core.clock import from_micros, to_micros
from core.ids import Namespace
from core.operations.alarms import Opening, StoredAlarm
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository
from core.store.database.statements import upsert

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Opening).decode
_table = tables.alarms
_references = tables.monitor_references


class AlarmsReader(Repository):
    """The alarms that were opened, and their states."""

    def get(self, alarm_id: str) -> StoredAlarm | None:
        row = self._connection.execute(select(_table).where(_table.c.alarm_id == alarm_id)).one_or_none()
        return None if row is None else alarm_of(row)

    def that_are_open(self) -> list[StoredAlarm]:
        """Return all open alarms, acknowledged ones too, the oldest first."""
        rows = self._connection.execute(select(_table).where(tables.IS_OPEN).order_by(_table.c.sequence))
        return [alarm_of(row) for row in rows]

    def holding_releases(self) -> list[StoredAlarm]:
        """Return the open alarms that hold releases, the oldest first."""
        return [alarm for alarm in self.that_are_open() if alarm.holds_releases]

    def newest(
        self, namespace: Namespace | None, before: int | None, limit: int, *, only_open: bool
    ) -> list[StoredAlarm]:
        """Return the newest alarms before the sequence `before`, the newest first; `namespace` None means all."""
        query = select(_table).order_by(_table.c.sequence.desc()).limit(limit)
        if only_open:
            query = query.where(tables.IS_OPEN)
        if namespace is not None:
            query = query.where(_table.c.namespace == namespace)
        if before is not None:
            query = query.where(_table.c.sequence < before)
        return [alarm_of(row) for row in self._connection.execute(query)]

    def untold(self, limit: int) -> list[StoredAlarm]:
        """Return the oldest alarms whose state the log does not know yet."""
        rows = self._connection.execute(select(_table).where(tables.UNTOLD).order_by(_table.c.sequence).limit(limit))
        return [alarm_of(row) for row in rows]


class Alarms(AlarmsReader):
    """The alarms, opened and closed by whatever finds a fault, and acknowledged by operators."""

    def open(self, found: Opening) -> bool:
        """Open an alarm, and return whether that was done.

        If this monitor has an open alarm in this workload already, that one stays as it is."""
        hold(self._connection, Lock.ALARMS)
        of_monitor = _table.c.monitor == found.monitor, _table.c.namespace == found.namespace
        query = select(_table.c.sequence).where(tables.IS_OPEN, *of_monitor, _table.c.workload == found.workload)
        if self._connection.execute(query).first() is not None:
            return False
        values = {
            "alarm_id": found.alarm_id,
            "monitor": found.monitor,
            "namespace": found.namespace,
            "workload": found.workload,
            "opened_at": to_micros(found.opened_at),
            "told": False,
            "record": _encode(found),
        }
        self._connection.execute(insert(_table).values(values))
        self._wake_watchers()
        return True

    def close(self, alarm_id: str, now: datetime) -> None:
        """Close an open alarm; do nothing to one that is closed."""
        self._change(alarm_id, closed_at=to_micros(now))

    def prolong(self, alarm: StoredAlarm, now: datetime) -> None:
        """Extend an alarm's window to `now`, because its cause is still there; the log need not be told."""
        longer = msgspec.structs.replace(alarm.opening, window_end=now)
        of_alarm = _table.c.alarm_id == alarm.alarm_id
        self._connection.execute(update(_table).where(of_alarm).values(record=_encode(longer)))

    def acknowledge(self, alarm_id: str, by: str, note: str | None, now: datetime) -> StoredAlarm | None:
        """Acknowledge an alarm and return it, or None if there is no such alarm.

        The first acknowledgement stands: an alarm that was acknowledged or closed stays as it is."""
        known = self.get(alarm_id)
        if known is None or known.state != "opened":
            return known
        self._change(alarm_id, acknowledged_at=to_micros(now), acknowledged_by=by, note=note)
        return self.get(alarm_id)

    def reopen(self, alarm_id: str) -> StoredAlarm | None:
        """Take an alarm's acknowledgement back and return the alarm, or None if there is no such alarm.

        It holds again what it held. One that is closed, or that nobody has acknowledged, stays as it is."""
        known = self.get(alarm_id)
        if known is None or known.state != "acknowledged":
            return known
        of_alarm = _table.c.alarm_id == alarm_id, tables.IS_OPEN
        none = {"acknowledged_at": None, "acknowledged_by": None, "note": None}
        self._connection.execute(update(_table).where(*of_alarm).values(told=False, **none))
        self._wake_watchers()
        return self.get(alarm_id)

    def _change(self, alarm_id: str, **values: object) -> None:
        """Set `values` of an open alarm, unless the first of them is set already."""
        first = _table.c[next(iter(values))]
        of_alarm = _table.c.alarm_id == alarm_id, tables.IS_OPEN, first.is_(None)
        self._connection.execute(update(_table).where(*of_alarm).values(told=False, **values))
        self._wake_watchers()

    def mark_told(self, alarms: Iterable[StoredAlarm]) -> None:
        """Mark alarms as announced in the state given here; one that has changed since is announced again."""
        for alarm in alarms:
            as_told = [
                column.is_(None) if moment is None else column == to_micros(moment)
                for column, moment in (
                    (_table.c.acknowledged_at, alarm.acknowledged_at),
                    (_table.c.closed_at, alarm.closed_at),
                )
            ]
            self._connection.execute(
                update(_table).where(_table.c.sequence == alarm.sequence, *as_told).values(told=True)
            )


class ReferencesReader(Repository):
    """The reference turns that a workload's recent turns are compared with."""

    def get(self, namespace: Namespace, workload: str) -> bytes | None:
        of_workload = _references.c.namespace == namespace, _references.c.workload == workload
        return self._connection.execute(select(_references.c.record).where(*of_workload)).scalar()


class References(ReferencesReader):
    """The reference turns, written by the monitors alone."""

    def put(self, references: Sequence[tuple[Namespace, str, bytes]]) -> None:
        """Store (namespace, workload, record) triples; what a record holds is the stage's affair."""
        upsert(
            self._connection,
            _references,
            [{"namespace": n, "workload": w, "record": record} for n, w, record in references],
        )


def alarm_of(row: Row[Any]) -> StoredAlarm:
    return StoredAlarm(
        sequence=row.sequence,
        opening=_decode(row.record),
        acknowledged_at=_moment(row.acknowledged_at),
        acknowledged_by=row.acknowledged_by,
        note=row.note,
        closed_at=_moment(row.closed_at),
    )


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
