"""Outcomes as they were logged."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Select, and_, func, select, tuple_

from core import codec
from core.clock import to_micros
from core.events import Outcome
from core.ids import InferenceId, Namespace, OutcomeId, SessionId
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import insert_new, within

_encode = codec.encoder().encode
_decode_outcome = codec.decoder(Outcome).decode
_of_its_own = and_(
    tables.turns.c.inference_id == tables.outcomes.c.inference_id,
    tables.turns.c.namespace == tables.outcomes.c.namespace,
)
_SIZES = select(tables.outcomes.c.outcome_id, func.length(tables.outcomes.c.record).label("size"))


def outcome_digest(outcome: Outcome) -> str:
    """Return a digest of what the client sent, without the time it arrived: a retry has the same digest."""
    said = (
        outcome.inference_id,
        outcome.session_id,
        outcome.name,
        outcome.value,
        outcome.target_range,
        outcome.target_call,
        outcome.evidence,
        outcome.supersedes,
        outcome.withdrawn,
        [*sorted(outcome.tags.items()), *(() if outcome.learn else ("not to be learned from",))],
    )
    return hashlib.blake2b(_encode(said), digest_size=16).hexdigest()


def _outcome_row(outcome: Outcome) -> dict[str, object]:
    return {
        "namespace": outcome.namespace,
        "outcome_id": outcome.outcome_id,
        "inference_id": outcome.inference_id,
        "session_id": outcome.session_id,
        "name": outcome.name,
        "content_digest": outcome_digest(outcome),
        "received_at": to_micros(outcome.received_at),
        "supersedes": outcome.supersedes,
        "withdrawn": outcome.withdrawn,
        "record": _encode(outcome),
    }


class OutcomesReader(Repository):
    """The outcomes of turns and of sessions, as they were logged."""

    def get(self, namespace: Namespace, outcome_id: OutcomeId) -> tuple[Outcome, str] | None:
        """Return an outcome and its content digest."""
        table = tables.outcomes
        row = self._connection.execute(
            select(table.c.record, table.c.content_digest).where(
                table.c.namespace == namespace, table.c.outcome_id == outcome_id
            )
        ).first()
        return None if row is None else (_decode_outcome(row.record), row.content_digest)

    def which_of(self, namespace: Namespace, outcome_ids: Collection[OutcomeId]) -> set[OutcomeId]:
        """Return those of the given outcomes that the namespace has."""
        known = tables.outcomes.c
        rows = self._connection.execute(
            select(known.outcome_id).where(known.namespace == namespace, known.outcome_id.in_(outcome_ids))
        )
        return {OutcomeId(row.outcome_id) for row in rows}

    def successor(self, namespace: Namespace, outcome_id: OutcomeId) -> Outcome | None:
        """Return the outcome that supersedes the given one: of several a withdrawal, or else the latest."""
        table = tables.outcomes
        record = self._connection.execute(
            select(table.c.record)
            .where(table.c.namespace == namespace, table.c.supersedes == outcome_id)
            .order_by(table.c.withdrawn.desc(), table.c.received_at.desc())
            .limit(1)
        ).scalar()
        return None if record is None else _decode_outcome(record)

    def withdrawal_before(self, namespace: Namespace, outcome_id: OutcomeId) -> Outcome | None:
        """Return the withdrawal of anything that the given outcome amends, however many amendments lie between.

        One query follows the chain, which may be long, and ends also where it is circular."""
        table = tables.outcomes
        of_namespace, amends = table.c.namespace == namespace, table.c.supersedes.is_not(None)
        first = select(table.c.supersedes.label("outcome_id"))
        chain = first.where(of_namespace, amends, table.c.outcome_id == outcome_id).cte("amended", recursive=True)
        before = select(table.c.supersedes).join(chain, and_(of_namespace, table.c.outcome_id == chain.c.outcome_id))
        amended = chain.union(before.where(amends))  # without what is there already
        query = select(table.c.record).join(amended, and_(of_namespace, table.c.supersedes == amended.c.outcome_id))
        record = self._connection.execute(query.where(table.c.withdrawn).limit(1)).scalar()
        return None if record is None else _decode_outcome(record)

    def of_turns(self, inference_ids: Sequence[InferenceId]) -> list[Outcome]:
        """Return what was said of turns in their own namespace.

        Another namespace may have named a turn while nobody could tell it that it has no such turn."""
        table = tables.outcomes
        rows = self._connection.execute(
            select(table.c.record)
            .join(tables.turns, _of_its_own)
            .where(table.c.inference_id.in_(list(inference_ids)))
            .order_by(table.c.received_at)
        )
        return [_decode_outcome(row.record) for row in rows]

    def of_session(self, namespace: Namespace, session_id: SessionId) -> list[Outcome]:
        """Return what was said of a session and, where they name it, of its turns."""
        table = tables.outcomes
        rows = self._connection.execute(
            select(table.c.record)
            .where(table.c.namespace == namespace, table.c.session_id == session_id)
            .order_by(table.c.received_at)
        )
        return [_decode_outcome(row.record) for row in rows]

    def newest_of_turns(
        self, namespace: Namespace, inference_ids: Sequence[InferenceId], most: int, most_bytes: int
    ) -> list[Outcome]:
        """Return the newest of what was said of a namespace's turns, in order.

        They are at most so many, and their records so many bytes; the newest is there in any case."""
        known = tables.outcomes.c
        named = _SIZES.join(tables.turns, _of_its_own).where(known.inference_id.in_(list(inference_ids)))
        return self._newest(namespace, named, most, most_bytes)

    def newest_of_session(
        self, namespace: Namespace, session_id: SessionId, most: int, most_bytes: int
    ) -> list[Outcome]:
        """Return the newest of what was said of a session, as `newest_of_turns` does."""
        known = tables.outcomes.c
        named = _SIZES.where(known.namespace == namespace, known.session_id == session_id)
        return self._newest(namespace, named, most, most_bytes)

    def _newest(self, namespace: Namespace, named: Select[Any], most: int, most_bytes: int) -> list[Outcome]:
        """Return the newest of those named. Sizes are asked for first: to put records in order costs reading all."""
        known = tables.outcomes.c
        sizes = self._connection.execute(named.order_by(known.received_at.desc(), known.outcome_id).limit(most))
        wanted = within(most_bytes, ((row.outcome_id, row.size) for row in sizes))
        rows = self._connection.execute(
            select(known.record)
            .where(known.namespace == namespace, known.outcome_id.in_(wanted))
            .order_by(known.received_at, known.outcome_id.desc())
        )
        return [_decode_outcome(row.record) for row in rows]

    def of_judged_turns(self, name: str) -> Iterator[list[Outcome]]:
        """Iterate over the turns that have an outcome of that name, and yield all outcomes of each."""
        table = tables.outcomes
        of = tuple_(table.c.namespace, table.c.inference_id)
        judged = select(table.c.namespace, table.c.inference_id).where(
            table.c.name == name, table.c.inference_id.is_not(None)
        )
        query = (
            select(table.c.namespace, table.c.inference_id, table.c.record)
            .where(of.in_(judged))
            .order_by(table.c.namespace, table.c.inference_id)
            .execution_options(yield_per=1000)
        )
        for _, rows in groupby(self._connection.execute(query), key=lambda row: row[:2]):
            yield [_decode_outcome(row.record) for row in rows]


class Outcomes(OutcomesReader):
    """The outcomes, each written once: by the writer as they come, by the scorer those that it concludes."""

    def put(self, outcomes: Sequence[Outcome]) -> int:
        """Store outcomes, and return how many were new.

        A superseded outcome is not marked here: readers follow `supersedes`."""
        return insert_new(self._connection, tables.outcomes, [_outcome_row(outcome) for outcome in outcomes])
