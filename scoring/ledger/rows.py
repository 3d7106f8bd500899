"""The ledger in the store: rows in, rows out, as functions of a connection.

It is the scorer's own view of turns and outcomes and does not depend on how far the writer has come.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import BindParameter, Column, Connection, Row, Select, bindparam, delete, func, select

from core.events import Outcome
from core.ids import InferenceId, Namespace, OutcomeId, SessionId
from core.store.database import tables
from core.store.database.connections import from_micros, to_micros
from core.store.database.statements import Among, upsert
from scoring.rewards.facts import Facts
from scoring.rewards.state import Heard, Session, SessionKey, Turn

_encode = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder(Facts).decode
_decode = msgspec.msgpack.Decoder(Outcome).decode
_CHUNK = 1000  # values in one IN list; SQLite takes 32766 variables
_NO_LIMIT = 2**62
_PARTITIONS: BindParameter[Any] = bindparam("partitions", expanding=True)
_turns, _outcomes, _sessions = tables.ledger_turns.c, tables.ledger_outcomes.c, tables.ledger_sessions.c


def _of_namespace(column: Column[str], *columns: Column[Any]) -> Select[Any]:
    """Rows of one namespace whose `column` is among `values`."""
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
_DUE = (
    select(tables.ledger_turns)
    .where(_turns.partition.in_(_PARTITIONS), _turns.due_at <= bindparam("moment"))
    .order_by(_turns.due_at, _turns.inference_id)
    .limit(bindparam("limit"))
)


def count_open(connection: Connection, partitions: Iterable[int]) -> int:
    """Turns of these partitions that wait."""
    table = tables.ledger_turns
    query = select(func.count()).select_from(table)
    query = query.where(table.c.partition.in_(list(partitions)), table.c.due_at.is_not(None))
    return int(connection.execute(query).scalar_one())


def is_empty(connection: Connection) -> bool:
    return connection.execute(select(tables.ledger_turns.c.inference_id).limit(1)).first() is None


def due_turns(connection: Connection, until: Mapping[int, datetime], limit: int = _NO_LIMIT) -> list[Turn]:
    """At most `limit` turns whose wait is over by the moment of their partition, the earliest first."""
    if not until:
        return []
    values = {"partitions": list(until), "moment": to_micros(max(until.values())), "limit": limit}
    turns = map(_turn, connection.execute(_DUE, values))
    return [turn for turn in turns if turn.due_at is not None and turn.due_at <= until[turn.partition]]


def find_sessions(connection: Connection, inference_ids: Iterable[InferenceId]) -> dict[InferenceId, SessionKey]:
    """The sessions of those turns that are known."""
    rows = _each_chunk(connection, _SESSIONS_OF_TURNS, inference_ids)
    return {InferenceId(row.inference_id): SessionKey((row.namespace, row.session_id)) for row in rows}


def load_sessions(connection: Connection, keys: Iterable[SessionKey]) -> dict[SessionKey, Session]:
    """All that is known of these sessions; one that is not known is empty."""
    sessions = {key: Session(key=key) for key in keys}
    for namespace, ids in _by_namespace(sessions):
        for row in _each_chunk(connection, _SESSIONS, ids, namespace=namespace):
            session = sessions[SessionKey((namespace, row.session_id))]
            session.last_at = from_micros(row.last_at)
            session.ended_at = _moment(row.ended_at)
        for row in _each_chunk(connection, _TURNS, ids, namespace=namespace):
            turn = _turn(row)
            sessions[SessionKey((namespace, turn.session_id))].add(turn)
        for row in _each_chunk(connection, _OUTCOMES, ids, namespace=namespace):
            heard = Heard(_decode(row.record), row.log_offset)
            sessions[SessionKey((namespace, row.session_id))].hear(heard)
    return sessions


def known_outcomes(
    connection: Connection, identities: Iterable[tuple[Namespace, OutcomeId]]
) -> set[tuple[Namespace, OutcomeId]]:
    return {
        (namespace, OutcomeId(row.outcome_id))
        for namespace, ids in _by_namespace(identities)
        for row in _each_chunk(connection, _KNOWN_OUTCOMES, ids, namespace=namespace)
    }


def early_outcomes(connection: Connection, inference_ids: Iterable[InferenceId]) -> list[Heard]:
    """Outcomes that came before their turns."""
    rows = _each_chunk(connection, _EARLY_OUTCOMES, inference_ids)
    return [Heard(_decode(row.record), row.log_offset) for row in rows]


def waiting_outcomes(connection: Connection) -> list[Heard]:
    """All outcomes whose turns have not come. By namespace, as the index has them."""
    found: list[Heard] = []
    namespace = connection.execute(_FIRST_NAMESPACE, {"last": ""}).scalar_one()
    while namespace is not None:
        rows = connection.execute(_WAITING_OUTCOMES, {"namespace": namespace})
        found += [Heard(_decode(row.record), row.log_offset) for row in rows]
        namespace = connection.execute(_FIRST_NAMESPACE, {"last": namespace}).scalar_one()
    return found


def forget_outcomes(connection: Connection, outcomes: Iterable[Outcome]) -> None:
    """Those that wait for their turn no longer."""
    for outcome in outcomes:
        connection.execute(
            delete(tables.ledger_outcomes).where(
                _outcomes.namespace == outcome.namespace,
                _outcomes.outcome_id == outcome.outcome_id,
                _outcomes.session_id.is_(None),
            )
        )


def save_turns(connection: Connection, turns: Iterable[Turn]) -> None:
    upsert(connection, tables.ledger_turns, [_turn_row(turn) for turn in turns])


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
    upsert(connection, tables.ledger_sessions, rows)


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
    upsert(connection, tables.ledger_outcomes, rows)


def _each_chunk(
    connection: Connection, query: Select[Any], values: Iterable[str], **parameters: object
) -> Iterator[Row[Any]]:
    remaining = iter(set(values))
    while chunk := list(islice(remaining, _CHUNK)):
        yield from connection.execute(query, {"values": chunk, **parameters})


def _by_namespace(pairs: Iterable[tuple[Namespace, str]]) -> list[tuple[Namespace, list[str]]]:
    """As the indices have them."""
    found: dict[Namespace, list[str]] = {}
    for namespace, value in pairs:
        found.setdefault(namespace, []).append(value)
    return list(found.items())


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _turn(row: Row[Any]) -> Turn:
    fields = dict(row._mapping)
    for name in ("opened_at", "due_at", "decided_at"):
        fields[name] = _moment(fields[name])
    fields["facts"] = Facts() if fields["facts"] is None else _decode_facts(fields["facts"])
    return Turn(**fields)


def _turn_row(turn: Turn) -> dict[str, object]:
    fields = msgspec.structs.asdict(turn)
    for name in ("opened_at", "due_at", "decided_at"):
        fields[name] = None if fields[name] is None else to_micros(fields[name])
    fields["facts"] = _encode(turn.facts)
    return fields
