"""The ledger in the store: rows in, rows out, as functions of a connection.

It is the scorer's own view of turns and outcomes and does not depend on how far the writer has come.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Column, Connection, Insert, Row, Select, Table, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from core import tables
from core.events import Outcome
from core.ids import InferenceId, Namespace, OutcomeId, SessionId
from core.store.database import from_micros, to_micros
from scoring.state import Heard, Session, SessionKey, Turn

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Outcome).decode
_CHUNK = 1000  # values in one IN list; SQLite takes 32766 variables


def count_open(connection: Connection) -> int:
    """Turns that wait."""
    table = tables.ledger_turns
    query = select(func.count()).select_from(table).where(table.c.due_at.is_not(None))
    return int(connection.execute(query).scalar_one())


def is_empty(connection: Connection) -> bool:
    return connection.execute(select(tables.ledger_turns.c.inference_id).limit(1)).first() is None


def due_turns(connection: Connection, until: Mapping[int, datetime], limit: int | None = None) -> list[Turn]:
    """The turns of each partition whose wait is over by its moment, the earliest first."""
    if not until:
        return []
    table = tables.ledger_turns
    due = or_(*((table.c.partition == key) & (table.c.due_at <= to_micros(at)) for key, at in until.items()))
    query = select(table).where(due).order_by(table.c.due_at, table.c.inference_id).limit(limit)
    return [_turn(row) for row in connection.execute(query)]


def find_sessions(connection: Connection, inference_ids: Iterable[InferenceId]) -> set[SessionKey]:
    """The sessions of those turns that are known."""
    table = tables.ledger_turns
    rows = _select_in(connection, select(table), table.c.inference_id, inference_ids)
    return {SessionKey((row.namespace, row.session_id)) for row in rows}


def load_sessions(connection: Connection, keys: Iterable[SessionKey]) -> dict[SessionKey, Session]:
    """All that is known of these sessions; one that is not known is empty."""
    sessions = {key: Session(key=key) for key in keys}
    for row in _select_owned(connection, tables.ledger_sessions, "session_id", sessions):
        session = sessions[SessionKey((row.namespace, row.session_id))]
        session.last_at = from_micros(row.last_at)
        session.ended_at = _moment(row.ended_at)
    for row in _select_owned(connection, tables.ledger_turns, "session_id", sessions):
        turn = _turn(row)
        sessions[SessionKey((turn.namespace, turn.session_id))].turns[turn.inference_id] = turn
    for row in _select_owned(connection, tables.ledger_outcomes, "session_id", sessions):
        heard = Heard(_decode(row.record), row.log_offset)
        sessions[SessionKey((row.namespace, row.session_id))].hear(heard)
    return sessions


def known_outcomes(
    connection: Connection, identities: Iterable[tuple[Namespace, OutcomeId]]
) -> set[tuple[Namespace, OutcomeId]]:
    rows = _select_owned(connection, tables.ledger_outcomes, "outcome_id", identities)
    return {(Namespace(row.namespace), OutcomeId(row.outcome_id)) for row in rows}


def early_outcomes(connection: Connection, inference_ids: Iterable[InferenceId]) -> list[Heard]:
    """Outcomes that came before their turns."""
    table = tables.ledger_outcomes
    query = select(table).where(table.c.session_id.is_(None))
    rows = _select_in(connection, query, table.c.inference_id, inference_ids)
    return [Heard(_decode(row.record), row.log_offset) for row in rows]


def save_turns(connection: Connection, turns: Iterable[Turn]) -> None:
    _upsert(connection, tables.ledger_turns, [_turn_row(turn) for turn in turns])


def save_sessions(connection: Connection, sessions: Iterable[Session]) -> None:
    rows: list[dict[str, object]] = []
    for session in sessions:
        assert session.last_at is not None
        ended_at = None if session.ended_at is None else to_micros(session.ended_at)
        rows.append(
            {
                "namespace": session.key[0],
                "session_id": session.key[1],
                "last_at": to_micros(session.last_at),
                "ended_at": ended_at,
            }
        )
    _upsert(connection, tables.ledger_sessions, rows)


def save_outcomes(connection: Connection, heard: Iterable[tuple[Heard, SessionId | None]]) -> None:
    """Each with the session it belongs to; None while its turn is unknown. Saved again with a session: adopted."""
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
    _upsert(connection, tables.ledger_outcomes, rows)


def _select_in(
    connection: Connection, query: Select[Any], column: Column[Any], values: Iterable[str]
) -> Iterator[Row[Any]]:
    """The query's rows whose `column` is among `values`, in chunks."""
    remaining = iter(set(values))
    while chunk := list(islice(remaining, _CHUNK)):
        yield from connection.execute(query.where(column.in_(chunk)))


def _select_owned(
    connection: Connection, table: Table, column: str, pairs: Iterable[tuple[Namespace, str]]
) -> Iterator[Row[Any]]:
    """Rows by (namespace, `column`), as the indices have them."""
    by_namespace: dict[Namespace, list[str]] = {}
    for namespace, value in pairs:
        by_namespace.setdefault(namespace, []).append(value)
    for namespace, values in by_namespace.items():
        yield from _select_in(connection, select(table).where(table.c.namespace == namespace), table.c[column], values)


def _upsert(connection: Connection, table: Table, rows: list[dict[str, object]]) -> None:
    if not rows:
        return
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table)
    changed = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
    upsert: Insert = statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)
    connection.execute(upsert, rows)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _turn(row: Row[Any]) -> Turn:
    fields = dict(row._mapping)
    for name in ("opened_at", "due_at", "decided_at"):
        fields[name] = _moment(fields[name])
    return Turn(**fields)


def _turn_row(turn: Turn) -> dict[str, object]:
    fields = msgspec.structs.asdict(turn)
    for name in ("opened_at", "due_at", "decided_at"):
        fields[name] = None if fields[name] is None else to_micros(fields[name])
    return fields
