"""Which changes of alarms each target was told, or is told no more."""

from datetime import datetime

from sqlalchemy import ColumnElement, FromClause, and_, or_, select

from core.clock import to_micros
from core.operations.alerts import Alert, Change, Result
from core.store.alarms import alarm_of
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import insert_new

_alarms, _told, _targets = tables.alarms, tables.alerts, tables.alert_targets


class AlertsReader(Repository):
    def due(self, target: str, limit: int) -> list[Alert]:
        """Return the oldest changes that a target is to be told, an alarm's opening before its closing.

        Of alarms that were closed before the target was first known it is told nothing."""
        since = select(_targets.c.since).where(_targets.c.target == target).scalar_subquery()
        opened, closed = _told.alias(), _told.alias()
        query = (
            select(_alarms, opened.c.change.label("told_opened"))
            .join(opened, _is_of(opened, target, "opened"), isouter=True)
            .join(closed, _is_of(closed, target, "closed"), isouter=True)
            .where(
                or_(_alarms.c.closed_at.is_(None), _alarms.c.closed_at >= since),
                or_(opened.c.change.is_(None), and_(_alarms.c.closed_at.is_not(None), closed.c.change.is_(None))),
            )
            .order_by(_alarms.c.sequence)
            .limit(limit)
        )
        found = []
        for row in self._connection.execute(query):
            alarm = alarm_of(row)
            if row.told_opened is None:
                found.append(Alert(alarm=alarm, change="opened"))
            if alarm.closed_at is not None:
                found.append(Alert(alarm=alarm, change="closed"))
        return found

    def result(self, target: str, alert: Alert) -> Result | None:
        """Return what became of a change, or None where the target is still to be told."""
        of_change = _told.c.target == target, _told.c.sequence == alert.alarm.sequence, _told.c.change == alert.change
        found: Result | None = self._connection.execute(select(_told.c.result).where(*of_change)).scalar()
        return found


class Alerts(AlertsReader):
    """What became of each change, written by the notifier alone."""

    def know(self, target: str, now: datetime) -> None:
        """Note a target, unless it is known: it is told of what is open from now on."""
        insert_new(self._connection, _targets, [{"target": target, "since": to_micros(now)}])

    def settle(self, target: str, alert: Alert, result: Result, now: datetime) -> bool:
        """Note what became of a change, and return True; False where that is known already, which stays as it is."""
        row = {"target": target, "sequence": alert.alarm.sequence, "change": alert.change}
        return insert_new(self._connection, _told, [{**row, "result": result, "at": to_micros(now)}]) == 1


def _is_of(told: FromClause, target: str, change: Change) -> ColumnElement[bool]:
    return and_(told.c.target == target, told.c.sequence == _alarms.c.sequence, told.c.change == change)
