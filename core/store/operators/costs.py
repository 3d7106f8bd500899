"""What was used, by month, namespace and policy."""

from collections.abc import Mapping

from sqlalchemy import func, select

from core.ids import Namespace, PolicyName
from core.operations.costs import Payer, Used
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import add_up

_table = tables.costs


class CostsReader(Repository):
    def of_month(self, month: str) -> dict[Payer, Used]:
        """Return what was used in a month, by all."""
        rows = self._connection.execute(
            select(_table).where(_table.c.month == month).order_by(_table.c.policy, _table.c.namespace)
        )
        return {
            Payer(row.month, Namespace(row.namespace), PolicyName(row.policy)): Used(
                *(getattr(row, name) for name in Used._fields)
            )
            for row in rows
        }

    def held(self, month: str) -> dict[tuple[Namespace, PolicyName], int]:
        """Return the bytes that were logged up to the end of a month, by namespace and policy."""
        sums = (
            select(_table.c.namespace, _table.c.policy, func.sum(_table.c.logged_bytes).label("held"))
            .where(_table.c.month <= month)
            .group_by(_table.c.namespace, _table.c.policy)
        )
        return {
            (Namespace(row.namespace), PolicyName(row.policy)): int(row.held) for row in self._connection.execute(sums)
        }


class Costs(CostsReader):
    """What was used; it only grows. The writer counts turns, the learner its versions, each with what it writes."""

    def add(self, used: Mapping[Payer, Used]) -> None:
        add_up(
            self._connection,
            _table,
            [{**payer._asdict(), **each._asdict()} for payer, each in used.items()],
            Used._fields,
        )
