"""The ledger's rows in the store.

The ledger is the scorer's own view of turns and outcomes, and does not depend on how far the writer has come."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

import msgspec
from sqlalchemy import BindParameter, Column, Row, Select, bindparam, delete, func, select

from core.clock import from_micros, to_micros
from core.events import Outcome
from core.ids import InferenceId, Namespace, OutcomeId, SessionId
from core.operations.ledger import DueTurn, Facts, Heard, LedgerEntry, SessionKey, SessionRow
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import Among, upsert

Id = TypeVar("Id", bound=str)
_encode = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder(Facts).decode
_decode = msgspec.msgpack.Decoder(Outcome).decode
_CHUNK = 1000  # values in one IN list; SQLite takes 32766 variables
_NO_LIMIT = 2**62
_PARTITIONS: BindParameter[Any] = bindparam("partitions", expanding=True)
_turns, _outcomes, _sessions = tables.ledger_turns.c, tables.ledger_outcomes.c, tables.ledger_sessions.c


def _of_namespace(column: Column[str], *columns: Column[Any]) -> Select[Any]:
    """Build a query for the rows of one namespace whose `column` is among `values`."""
    table = column.table
    return select(*(columns or [table])).where(table.c.namespace == bindparam("namespace"), Among(column))


# Built once: to build a query costs as much as to run it.
_SESSIONS = _of_namespace(_sessions.session_id)
_TURNS = _of_namespace(_turns.session_id)
_OUTCOMES = _of_namespace(_outcomes.session_id)
_KNOWN_OUTCOMES = _of_namespace(_outcomes.outcome_id, _outcomes.outcome_id)
_SESSIONS_OF_TURNS = select(_turns.inference_id, _turns.namespace, _turns.session_id).where(Among(_turns.inference_id))
_EARLY_OUTCOMES = select(_outcomes.record, _outcomes.log_offset).where(
    _outcomes.session_id.is_(None), Among(_outcomes.inference_id)
)
_FIRST_NAMESPACE = select(func.min(_outcomes.namespace)).where(_outcomes.namespace > bindparam("last"))
_WAITING_OUTCOMES = select(_outcomes.record, _outcomes.log_offset).where(
    _outcomes.namespace == bindparam("namespace"), _outcomes.session_id.is_(None)
)
_DUE: Select[Any] = (
    select(_turns.inference_id, _turns.session_id, _turns.namespace, _turns.partition, _turns.due_at)
    .where(_turns.partition.in_(_PARTITIONS), _turns.due_at <= bindparam("moment"))
    .order_by(_turns.due_at, _turns.inference_id)
    .limit(bindparam("limit"))
)


class LedgerReader(Repository):
    """Sessions with their turns and outcomes, as the scorer knows them."""

    def count_open(self, partitions: Iterable[int]) -> int:
        """Count the turns of these partitions that are still waiting."""
        table = tables.ledger_turns
        query = select(func.count()).select_from(table)
        query = query.where(table.c.partition.in_(list(partitions)), table.c.due_at.is_not(None))
        return int(self._connection.execute(query).scalar_one())

    def is_empty(self) -> bool:
        return self._connection.execute(select(tables.ledger_turns.c.inference_id).limit(1)).first() is None

    def due_turns(self, until: Mapping[int, datetime], limit: int = _NO_LIMIT) -> list[DueTurn]:
        """Return at most `limit` turns whose wait is over at their partition's moment, the earliest first."""
        if not until:
            return []
        values = {"partitions": list(until), "moment": to_micros(max(until.values())), "limit": limit}
        turns = map(_due, self._connection.execute(_DUE, values))
        return [turn for turn in turns if turn.due_at <= until[turn.partition]]

    def sessions_of(self, inference_ids: Iterable[InferenceId]) -> dict[InferenceId, SessionKey]:
        """Return the sessions of those turns that are known."""
        rows = self._each_chunk(_SESSIONS_OF_TURNS, inference_ids)
        return {InferenceId(row.inference_id): SessionKey((row.namespace, row.session_id)) for row in rows}

    def sessions(self, namespace: Namespace, session_ids: Collection[SessionId]) -> Iterator[SessionRow]:
        """Iterate over those of the given sessions of one namespace that are known."""
        for row in self._each_chunk(_SESSIONS, session_ids, namespace=namespace):
            key = SessionKey((namespace, row.session_id))
            yield SessionRow(key=key, last_at=from_micros(row.last_at), ended_at=_moment(row.ended_at))

    def turns(self, namespace: Namespace, session_ids: Collection[SessionId]) -> Iterator[LedgerEntry]:
        """Iterate over the turns of these sessions."""
        return map(_turn, self._each_chunk(_TURNS, session_ids, namespace=namespace))

    def outcomes(self, namespace: Namespace, session_ids: Collection[SessionId]) -> Iterator[tuple[SessionId, Heard]]:
        """Iterate over all outcomes of these sessions and of their turns, each with its session."""
        for row in self._each_chunk(_OUTCOMES, session_ids, namespace=namespace):
            yield row.session_id, Heard(_decode(row.record), row.log_offset)

    def known_outcomes(self, identities: Iterable[tuple[Namespace, OutcomeId]]) -> set[tuple[Namespace, OutcomeId]]:
        return {
            (namespace, OutcomeId(row.outcome_id))
            for namespace, ids in by_namespace(identities)
            for row in self._each_chunk(_KNOWN_OUTCOMES, ids, namespace=namespace)
        }

    def early_outcomes(self, inference_ids: Iterable[InferenceId]) -> list[Heard]:
        """Return the outcomes that came before their turns."""
        rows = self._each_chunk(_EARLY_OUTCOMES, inference_ids)
        return [Heard(_decode(row.record), row.log_offset) for row in rows]

    def waiting_outcomes(self) -> list[Heard]:
        """Return all outcomes whose turns have not come. Asks namespace by namespace, as the index is ordered."""
        found: list[Heard] = []
        namespace = self._connection.execute(_FIRST_NAMESPACE, {"last": ""}).scalar_one()
        while namespace is not None:
            rows = self._connection.execute(_WAITING_OUTCOMES, {"namespace": namespace})
            found += [Heard(_decode(row.record), row.log_offset) for row in rows]
            namespace = self._connection.execute(_FIRST_NAMESPACE, {"last": namespace}).scalar_one()
        return found

    def _each_chunk(self, query: Select[Any], values: Iterable[str], **parameters: object) -> Iterator[Row[Any]]:
        remaining = iter(set(values))
        while chunk := list(islice(remaining, _CHUNK)):
            yield from self._connection.execute(query, {"values": chunk, **parameters})


class Ledger(LedgerReader):
    """The ledger, written by the scorer alone: sessions, with everything of theirs that changed."""

    def forget_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Delete outcomes that no longer wait for their turn."""
        for outcome in outcomes:
            self._connection.execute(
                delete(tables.ledger_outcomes).where(
                    _outcomes.namespace == outcome.namespace,
                    _outcomes.outcome_id == outcome.outcome_id,
                    _outcomes.session_id.is_(None),
                )
            )

    def put_turns(self, turns: Iterable[LedgerEntry]) -> None:
        upsert(self._connection, tables.ledger_turns, [_turn_row(turn) for turn in turns])

    def put_sessions(self, sessions: Iterable[SessionRow]) -> None:
        rows: list[dict[str, object]] = []
        for session in sessions:
            ended_at = None if session.ended_at is None else to_micros(session.ended_at)
            rows.append(
                {
                    "namespace": session.key[0],
                    "session_id": session.key[1],
                    "last_at": to_micros(session.last_at),
                    "ended_at": ended_at,
                }
            )
        upsert(self._connection, tables.ledger_sessions, rows)

    def put_outcomes(self, heard: Iterable[tuple[Heard, SessionId | None]]) -> None:
        """Store outcomes, each with its session, or with None while its turn is unknown.

        An outcome that waited is stored again with its session once its turn has come."""
        rows: list[dict[str, object]] = [
            {
                "namespace": entry.outcome.namespace,
                "outcome_id": entry.outcome.outcome_id,
                "inference_id": entry.outcome.inference_id,
                "session_id": session_id,
                "log_offset": entry.offset,
                "record": _encode(entry.outcome),
            }
            for entry, session_id in heard
        ]
        upsert(self._connection, tables.ledger_outcomes, rows)


def by_namespace(pairs: Iterable[tuple[Namespace, Id]]) -> list[tuple[Namespace, list[Id]]]:
    """Group values by namespace, as the indexes are ordered."""
    found: dict[Namespace, list[Id]] = {}
    for namespace, value in pairs:
        found.setdefault(namespace, []).append(value)
    return list(found.items())


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _due(row: Row[Any]) -> DueTurn:
    return DueTurn(row.inference_id, row.session_id, row.namespace, row.partition, from_micros(row.due_at))


def _turn(row: Row[Any]) -> LedgerEntry:
    fields = dict(row._mapping)
    for name in ("opened_at", "due_at", "decided_at"):
        fields[name] = _moment(fields[name])
    fields["facts"] = Facts() if fields["facts"] is None else _decode_facts(fields["facts"])
    return LedgerEntry(**fields)


def _turn_row(turn: LedgerEntry) -> dict[str, object]:
    fields = msgspec.structs.asdict(turn)
    for name in ("opened_at", "due_at", "decided_at"):
        fields[name] = None if fields[name] is None else to_micros(fields[name])
    fields["facts"] = _encode(turn.facts)
    return fields
