"""Orders to erase, with the steps of each."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from sqlalchemy import ColumnElement, Row, delete, func, insert, select, update

from core.clock import from_micros, to_micros
from core.ids import Namespace, SessionId
from core.operations.erasures import ErasedKind, Erasure, Foreseen, Step
from core.operations.exclusions import Selection
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository
from core.store.database.statements import upsert
from core.store.erasure.words import WordsReader
from core.store.exclusions import Exclusions

_table, _steps, _origins = tables.erasures, tables.erasure_steps, tables.erasure_origins
WEIGHTS: Final = "weights"
"""The place of published versions."""
_MOST_SESSIONS: Final = 5000  # that one order to exclude names
_IN_FORCE = _table.c.done_at.is_(None)
_encode = msgspec.msgpack.Encoder().encode


class _Found(msgspec.Struct, frozen=True):
    sessions: tuple[SessionId, ...] = ()
    exclusions: tuple[int, ...] = ()
    foreseen: Foreseen | None = None
    namespaces: tuple[Namespace, ...] = ()
    parts: tuple[int, ...] = ()
    origins: tuple[str, ...] = ()


_decode_found = msgspec.msgpack.Decoder(_Found).decode
_decode_step = msgspec.msgpack.Decoder(Step).decode


class ErasuresReader(Repository):
    """The orders to erase, and how far each is obeyed."""

    def stamp(self) -> tuple[int, int]:
        """Return (the newest order's number, how many are done), which differ once there is news."""
        row = self._connection.execute(select(func.max(_table.c.erasure_id), func.count(_table.c.done_at))).one()
        return row[0] or 0, row[1]

    def in_force(self) -> list[Erasure]:
        """Return the orders that are not obeyed everywhere yet, the oldest first."""
        rows = self._connection.execute(select(_table).where(_IN_FORCE).order_by(_table.c.erasure_id)).all()
        return [self._erasure(row) for row in rows]

    def in_force_for(self, order: Erasure) -> Erasure | None:
        """Return the newest order in force for the same, if there is one."""
        newest = _table.c.ordered_at.desc(), _table.c.erasure_id.desc()
        query = select(_table).where(_IN_FORCE, *_is_same(order)).order_by(*newest).limit(1)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else self._erasure(row)

    def newest(self, namespace: Namespace | None, limit: int) -> list[Erasure]:
        """Return the newest orders, the newest first; `namespace` None means those of all."""
        query = select(_table).order_by(_table.c.erasure_id.desc()).limit(limit)
        if namespace is not None:
            query = query.where(_table.c.namespace == namespace)
        return [self._erasure(row) for row in self._connection.execute(query).all()]

    def done_after(self, erasure_id: int, limit: int) -> list[Erasure]:
        """Return the next orders after one that are done, by their numbers."""
        chosen = _table.c.done_at.is_not(None), _table.c.erasure_id > erasure_id
        query = select(_table).where(*chosen).order_by(_table.c.erasure_id).limit(limit)
        return [self._erasure(row) for row in self._connection.execute(query).all()]

    def called(self, origin: str) -> Erasure | None:
        """Return the order that stands for one of another cluster, by that one's name."""
        number = select(_origins.c.erasure_id).where(_origins.c.origin == origin)
        row = self._connection.execute(select(_table).where(_table.c.erasure_id.in_(number))).one_or_none()
        return None if row is None else self._erasure(row)

    def of_organisations(self) -> list[Erasure]:
        """Return the orders that erase organisations, done or not: neither their names nor namespaces come back."""
        chosen = _table.c.kind == "organisation"
        rows = self._connection.execute(select(_table).where(chosen).order_by(_table.c.erasure_id)).all()
        return [self._erasure(row) for row in rows]

    def withdrawn(self) -> frozenset[str]:
        """Return the digests of the versions that lost their weights to an order."""
        rows = self._connection.execute(select(_steps.c.record).where(_steps.c.place == WEIGHTS))
        return frozenset(digest for row in rows for digest in _decode_step(row.record).withdrawn)

    def get(self, erasure_id: int) -> Erasure | None:
        row = self._connection.execute(select(_table).where(_table.c.erasure_id == erasure_id)).one_or_none()
        return None if row is None else self._erasure(row)

    def _erasure(self, row: Row[Any]) -> Erasure:
        found = _decode_found(row.found)
        steps = self._connection.execute(select(_steps).where(_steps.c.erasure_id == row.erasure_id))
        return Erasure(
            erasure_id=row.erasure_id,
            namespace=row.namespace,
            kind=cast(ErasedKind, row.kind),
            subject=row.subject,
            why=row.why,
            by=row.by,
            ordered_at=from_micros(row.ordered_at),
            deadline_at=from_micros(row.deadline_at),
            sessions=found.sessions,
            exclusions=found.exclusions,
            waits_for=row.waits_for,
            done_at=None if row.done_at is None else from_micros(row.done_at),
            statement=row.statement,
            steps={step.place: _decode_step(step.record) for step in steps},
            foreseen=found.foreseen,
            namespaces=found.namespaces,
            parts=found.parts,
            origins=found.origins,
        )


class Erasures(ErasuresReader):
    """The orders: the API accepts them, the eraser obeys them, and the learner tells of its own directory."""

    def give(self, order: Erasure) -> int:
        """Store an order, whose number is not known yet; return that of one in force which means all that it does.

        One that came from another cluster is another order: it may mean what was said later."""
        hold(self._connection, Lock.EXCLUSIONS)
        known = None if order.origins else self.in_force_for(order)
        if known is not None and not self._means_more(order, known):
            return known.erasure_id
        values = {
            "namespace": order.namespace,
            "kind": order.kind,
            "subject": order.subject,
            "why": order.why,
            "by": order.by,
            "ordered_at": to_micros(order.ordered_at),
            "deadline_at": to_micros(order.deadline_at),
            "found": _encode(_found_of(order)),
            "waits_for": "the eraser has not seen it yet",
        }
        result = self._connection.execute(insert(_table).values(values))
        assert result.inserted_primary_key is not None
        number = int(result.inserted_primary_key[0])
        self._call(number, order.origins)
        return number

    def _means_more(self, order: Erasure, known: Erasure) -> bool:
        """Return whether something came after a known order for the same that this one is to erase."""
        if order.kind == "organisation":  # its parts erase what was said
            return False
        return WordsReader(self._connection).came_since(known, order.ordered_at)

    def widen(self, order: Erasure, sessions: Sequence[SessionId], now: datetime) -> None:
        """Add sessions that were found: from now on their turns are excluded from learning, too."""
        numbers = self.exclude(order, sessions, now)
        all_of_it = tuple(sorted({*order.sessions, *sessions}))
        wider = msgspec.structs.replace(order, sessions=all_of_it, exclusions=(*order.exclusions, *numbers))
        self._change(order.erasure_id, found=_encode(_found_of(wider)))

    def put_parts(self, order: Erasure, parts: tuple[int, ...]) -> None:
        """Store of which orders for its namespaces an organisation's order consists."""
        self._change(order.erasure_id, found=_encode(_found_of(msgspec.structs.replace(order, parts=parts))))

    def exclude(self, order: Erasure, sessions: Sequence[SessionId], now: datetime) -> tuple[int, ...]:
        """Keep the turns of sessions out of learning, and out of what was learned; return the orders' numbers."""
        exclusions, found = Exclusions(self._connection), list[int]()
        if order.kind == "namespace" and not order.exclusions:
            whole = Selection(namespace=order.namespace, until=order.ordered_at)
            return (exclusions.give(whole, "it is to be erased", order.by, now),)
        if order.kind == "namespace":
            return ()  # the first one selects all
        for start in range(0, len(sessions), _MOST_SESSIONS):
            part = tuple(sessions[start : start + _MOST_SESSIONS])
            selection = Selection(namespace=order.namespace, sessions=part, until=order.ordered_at)
            found.append(exclusions.give(selection, "it is to be erased", order.by, now))
        return tuple(found)

    def took(self, erasure_id: int, place: str, step: Step) -> None:
        """Say that a place is done; done again, it says what holds then."""
        upsert(self._connection, _steps, [{"erasure_id": erasure_id, "place": place, "record": _encode(step)}])

    def wait_for(self, erasure_id: int, what: str) -> None:
        self._change(erasure_id, waits_for=what)

    def end(self, erasure_id: int, now: datetime, statement: str) -> None:
        """End an order with its statement. The first statement stands."""
        chosen = _table.c.erasure_id == erasure_id, _IN_FORCE
        values = {"done_at": to_micros(now), "statement": statement, "waits_for": ""}
        self._connection.execute(update(_table).where(*chosen).values(values))

    def reopen(self, order: Erasure) -> None:
        """Put an order in force again, as more of it came late: all places are done once more, and stated anew."""
        self._connection.execute(delete(_steps).where(_steps.c.erasure_id == order.erasure_id))
        self._change(order.erasure_id, done_at=None, statement=None, waits_for="more of it came late")

    def _call(self, erasure_id: int, origins: Sequence[str]) -> None:
        """Let an order be found by the names of those of other clusters that it stands for."""
        upsert(self._connection, _origins, [{"origin": each, "erasure_id": erasure_id} for each in origins])

    def _change(self, erasure_id: int, **values: object) -> None:
        self._connection.execute(update(_table).where(_table.c.erasure_id == erasure_id).values(**values))


def _found_of(order: Erasure) -> _Found:
    return _Found(order.sessions, order.exclusions, order.foreseen, order.namespaces, order.parts, order.origins)


def _is_same(order: Erasure) -> tuple[ColumnElement[bool], ...]:
    return _table.c.namespace == order.namespace, _table.c.kind == order.kind, _table.c.subject == order.subject
