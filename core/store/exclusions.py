"""Orders that exclude turns from learning, and the turns that they select."""

from collections.abc import Collection, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, Select, func, insert, select, update

from core import codec
from core.clock import from_micros, to_micros
from core.events import VersionSpan
from core.ids import BASE, InferenceId, Namespace, PolicyName, SessionId, UserHash
from core.operations.exclusions import Exclusion, Relearning, Selection
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository

_encode = codec.encoder().encode
_selection = codec.decoder(Selection).decode
_relearning = codec.decoder(Relearning).decode
_table = tables.exclusions
WITHDRAWN: Final = "it was lifted before a learner saw it: nothing was excluded"
_PART: Final = 500  # turns named in one query, and rows read at once


class _Spoken(msgspec.Struct):
    """The part of a turn that selections look at."""

    inference_id: InferenceId
    session_id: SessionId
    namespace: Namespace
    user_id: UserHash | None
    workload: str
    received_at: datetime
    policy_versions: tuple[VersionSpan, ...]
    key_id: str | None = None


_spoken = codec.decoder(_Spoken).decode


class _OfAll(msgspec.Struct):
    """What the learners of several policies did about an order; of the base policy's alone there is no such thing."""

    base: Relearning | None = None
    policies: dict[PolicyName, Relearning] = {}


_of_all = codec.decoder(_OfAll).decode


def _reported(told: bytes | None) -> tuple[Relearning | None, dict[PolicyName, Relearning]]:
    if told is None:
        return None, {}
    found = _of_all(told)
    return (found.base, found.policies) if found.policies else (_relearning(told), {})


def _told(of_base: Relearning | None, others: dict[PolicyName, Relearning]) -> bytes:
    return _encode(of_base) if of_base and not others else _encode(_OfAll(base=of_base, policies=others))


class ExclusionsReader(Repository):
    """The orders, and how far each has been obeyed."""

    def stamp(self) -> tuple[int, int]:
        """Return (the newest order's number, how many were lifted), which differ once there is news."""
        row = self._connection.execute(select(func.max(_table.c.exclusion_id), func.count(_table.c.lifted_at))).one()
        return row[0] or 0, row[1]

    def in_order(self) -> list[Exclusion]:
        """Return all orders, the oldest first."""
        rows = self._connection.execute(select(_table).order_by(_table.c.exclusion_id))
        return [_exclusion(row) for row in rows]

    def newest(self, namespace: Namespace | None, limit: int) -> list[Exclusion]:
        """Return the newest orders, the newest first; `namespace` None means those of all."""
        query = select(_table).order_by(_table.c.exclusion_id.desc()).limit(limit)
        if namespace is not None:
            query = query.where(_table.c.namespace == namespace)
        return [_exclusion(row) for row in self._connection.execute(query)]

    def get(self, exclusion_id: int) -> Exclusion | None:
        row = self._connection.execute(select(_table).where(_table.c.exclusion_id == exclusion_id)).one_or_none()
        return None if row is None else _exclusion(row)

    def selected(self, selection: Selection) -> Iterator[tuple[InferenceId, datetime]]:
        """Iterate over the turns that a selection means, each with its arrival."""
        named = iter(selection.turns)
        while part := tuple(islice(named, _PART)):
            yield from self._selected(msgspec.structs.replace(selection, turns=part))
        if not selection.turns:
            yield from self._selected(selection)

    def keys_that_asked(self, namespace: Namespace, names: Collection[str]) -> set[str]:
        """Return those of the API keys that asked for a turn of the namespace, until all are found."""
        found, wanted = set[str](), set(names)
        selection = Selection(namespace=namespace)
        rows = iter(self._spoken(selection) if wanted else ())
        while found != wanted and (turn := next(rows, None)) is not None:
            if turn.key_id in wanted:
                found.add(turn.key_id)
        return found

    def _selected(self, selection: Selection) -> Iterator[tuple[InferenceId, datetime]]:
        if selection.keys or selection.versions:
            chosen = filter(selection.selects, self._spoken(selection))
            yield from ((turn.inference_id, turn.received_at) for turn in chosen)
            return
        turns = tables.turns.c
        for row in self._read(select(turns.inference_id, turns.received_at), selection):
            yield InferenceId(row.inference_id), from_micros(row.received_at)

    def _spoken(self, selection: Selection) -> Iterator[_Spoken]:
        return (_spoken(row.record) for row in self._read(select(tables.turns.c.record), selection))

    def _read(self, query: Select[Any], selection: Selection) -> Iterator[Row[Any]]:
        asked = query.where(*_conditions(selection)).execution_options(yield_per=_PART)
        yield from self._connection.execute(asked)


class Exclusions(ExclusionsReader):
    """The orders: the API accepts and lifts them, the learner says how far it has obeyed."""

    def give(self, selection: Selection, why: str, by: str, now: datetime) -> int:
        """Store an order, and return its number. Orders become visible in the order of their numbers."""
        hold(self._connection, Lock.EXCLUSIONS)
        values = {
            "namespace": selection.namespace,
            "selection": _encode(selection),
            "why": why,
            "by": by,
            "ordered_at": to_micros(now),
        }
        result = self._connection.execute(insert(_table).values(values))
        assert result.inserted_primary_key is not None
        return int(result.inserted_primary_key[0])

    def lift(self, exclusion_id: int, why: str, by: str, now: datetime) -> bool:
        """Lift an order for all that is decided from now on; return whether that was done.

        One that no learner has taken yet never held. The first lifting stands."""
        hold(self._connection, Lock.EXCLUSIONS)
        is_in_force = _table.c.exclusion_id == exclusion_id, _table.c.lifted_at.is_(None)
        values = {"lifted_at": to_micros(now), "lifted_by": by, "lifted_why": why}
        if self._connection.execute(update(_table).where(*is_in_force).values(values)).rowcount == 0:
            return False
        withdrawn = Relearning(note=WITHDRAWN, state="withdrawn", began_at=now, ended_at=now)
        is_new = _table.c.exclusion_id == exclusion_id, _table.c.relearning.is_(None)
        self._connection.execute(update(_table).where(*is_new).values(relearning=_encode(withdrawn)))
        return True

    def take(self, now: datetime, policies: Collection[PolicyName] = (BASE,)) -> list[Exclusion]:
        """Take all orders that no learner has seen, for the policies' learners; return all there are, the oldest first.

        One that is lifted before it is taken is withdrawn; one that is lifted later is obeyed to the end."""
        hold(self._connection, Lock.EXCLUSIONS)
        is_new = _table.c.relearning.is_(None)
        told = _told(Relearning(began_at=now), {each: Relearning(began_at=now) for each in policies if each != BASE})
        self._connection.execute(update(_table).where(is_new).values(relearning=told))
        return self.in_order()

    def report(self, exclusion_id: int, relearning: Relearning, policy: PolicyName = BASE) -> None:
        """Store how far a policy's learner has come with an order. One process has the learners of all policies."""
        chosen = _table.c.exclusion_id == exclusion_id
        of_base, others = _reported(self._connection.execute(select(_table.c.relearning).where(chosen)).scalar())
        if policy == BASE:
            of_base = relearning
        else:
            others = {**others, policy: relearning}
        self._connection.execute(update(_table).where(chosen).values(relearning=_told(of_base, others)))


def _conditions(selection: Selection) -> list[ColumnElement[bool]]:
    turns = tables.turns.c
    among = (
        (turns.user_id, selection.users),
        (turns.session_id, selection.sessions),
        (turns.inference_id, selection.turns),
        (turns.workload, selection.workloads),
    )
    found: list[ColumnElement[bool]] = [turns.namespace == selection.namespace]
    found += [column.in_(values) for column, values in among if values]
    if selection.since is not None:
        found.append(turns.received_at >= to_micros(selection.since))
    if selection.until is not None:
        found.append(turns.received_at < to_micros(selection.until))
    return found


def _exclusion(row: Row[Any]) -> Exclusion:
    of_base, others = _reported(row.relearning)
    return Exclusion(
        exclusion_id=row.exclusion_id,
        selection=_selection(row.selection),
        why=row.why,
        by=row.by,
        ordered_at=from_micros(row.ordered_at),
        lifted_at=None if row.lifted_at is None else from_micros(row.lifted_at),
        lifted_by=row.lifted_by,
        lifted_why=row.lifted_why,
        relearning=of_base,
        relearnings=others,
    )
