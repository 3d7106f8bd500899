"""The newest turns of a namespace, and the sessions they belong to, for lists and shares of all that is asked.

Queries are bounded by count and go along indexes, so their cost does not grow with the store."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, select

from core import codec
from core.clock import from_micros
from core.events import OutcomeSource, Priority, Protocol
from core.ids import InferenceId, Namespace, SessionId, UserHash
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import Among

_turns, _outcomes, _rewards = tables.turns, tables.outcomes, tables.rewards
_PEOPLE: frozenset[OutcomeSource] = frozenset(("client", "user", "environment"))
_AFTER_ALL = "\U0010ffff"  # a text that begins with the prefix lies before the prefix with this


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """What the columns say of a turn, without its record."""

    inference_id: InferenceId
    session_id: SessionId
    received_at: datetime
    user_id: UserHash | None
    workload: str
    client: str | None
    protocol: str | None
    trainable: bool


class Served(msgspec.Struct, frozen=True, tag="completion", kw_only=True):
    """The fields of a turn's record that say how it was served. The rest is skipped, not decoded."""

    inference_id: InferenceId
    session_id: SessionId
    received_at: datetime
    client: str | None = None
    protocol: Protocol | None = None
    ignored: tuple[str, ...] = ()
    trainable: bool
    untrainable_reasons: tuple[str, ...] = ()
    priority: Priority = "normal"
    delivered_tokens: int
    ttft_ms: float | None = None
    latency_ms: float


class Voice(msgspec.Struct, frozen=True, tag="outcome"):
    """The field of an outcome's record that says who spoke."""

    source: OutcomeSource = "client"


class Valued(msgspec.Struct, frozen=True, tag="reward"):
    """The fields of a reward's record that say what its turn is worth; one that is void is worth nothing at all."""

    value: float
    void: bool = False


_decode_served = codec.decoder(Served).decode
_decode_voice = codec.decoder(Voice).decode
_decode_valued = codec.decoder(Valued).decode
_GLANCE = [_turns.c[name] for name in Glance.__struct_fields__]
_heard = select(_outcomes.c.inference_id, _outcomes.c.session_id, _outcomes.c.record).where(
    _outcomes.c.withdrawn.is_(False)
)
_OF_TURNS = _heard.where(Among(_outcomes.c.inference_id), _outcomes.c.namespace == bindparam("namespace"))
_OF_SESSIONS = _heard.where(
    Among(_outcomes.c.session_id),
    _outcomes.c.inference_id.is_(None),
    _outcomes.c.namespace == bindparam("namespace"),
)
_WORTH = (
    select(_rewards.c.inference_id, _rewards.c.record)
    .where(Among(_rewards.c.inference_id))
    .order_by(_rewards.c.sequence)
)
_WHOLE = (
    select(*_GLANCE)
    .where(_turns.c.namespace == bindparam("namespace"), Among(_turns.c.session_id))
    .order_by(_turns.c.inference_id.desc())
    .limit(bindparam("limit"))
)


class Recent(Repository):
    """Queries over the newest turns, the newest first."""

    def glances(self, namespace: Namespace, before: InferenceId | None, limit: int) -> list[Glance]:
        """Return turns of the namespace whose ids lie before `before`."""
        rows = self._connection.execute(_newest(_GLANCE, namespace, before, limit))
        return [_glance(row) for row in rows]

    def served(self, namespace: Namespace, limit: int) -> list[Served]:
        """Return how the newest turns were served. Reads whole records: meant for hundreds of turns."""
        rows = self._connection.execute(_newest([_turns.c.record], namespace, None, limit))
        return [_decode_served(row.record) for row in rows]

    def of_sessions(self, namespace: Namespace, sessions: Collection[SessionId], limit: int) -> list[Glance]:
        """Return the newest `limit` turns of these sessions."""
        rows = self._connection.execute(_WHOLE, {"namespace": namespace, "values": sorted(sessions), "limit": limit})
        return [_glance(row) for row in rows]

    def sessions_named(self, namespace: Namespace, prefix: str, limit: int) -> list[SessionId]:
        """Return sessions whose ids begin with `prefix`, in the order of their ids."""
        session = _turns.c.session_id
        rows = self._connection.execute(
            select(session)
            .where(_turns.c.namespace == namespace, session >= prefix, session < prefix + _AFTER_ALL)
            .group_by(session)
            .order_by(session)
            .limit(limit)
        )
        return [SessionId(row.session_id) for row in rows]

    def heard(
        self, namespace: Namespace, turns: Collection[InferenceId], sessions: Collection[SessionId]
    ) -> tuple[set[InferenceId], set[SessionId]]:
        """Return which of the turns, and which of the sessions as such, somebody gave feedback on.

        What stages of ours conclude is no feedback."""
        of_turns = self._connection.execute(_OF_TURNS, {"values": sorted(turns), "namespace": namespace})
        told = {InferenceId(row.inference_id) for row in of_turns if _is_somebodys(row.record)}
        of_sessions = self._connection.execute(_OF_SESSIONS, {"values": sorted(sessions), "namespace": namespace})
        return told, {SessionId(row.session_id) for row in of_sessions if _is_somebodys(row.record)}

    def worth(self, turns: Collection[InferenceId]) -> dict[InferenceId, float]:
        """Return the latest reward of those turns that have one, and whose latest is not void."""
        rows = self._connection.execute(_WORTH, {"values": sorted(turns)})
        latest = {InferenceId(row.inference_id): _decode_valued(row.record) for row in rows}
        return {name: reward.value for name, reward in latest.items() if not reward.void}


def _newest(columns: Sequence[ColumnElement[Any]], namespace: Namespace, before: InferenceId | None, limit: int) -> Any:
    query = select(*columns).where(_turns.c.namespace == namespace)
    if before is not None:
        query = query.where(_turns.c.inference_id < before)
    return query.order_by(_turns.c.inference_id.desc()).limit(limit)


def _glance(row: Any) -> Glance:
    fields = dict(row._mapping)
    return Glance(**{**fields, "received_at": from_micros(row.received_at)})


def _is_somebodys(record: bytes) -> bool:
    return _decode_voice(record).source in _PEOPLE
