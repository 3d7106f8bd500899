"""Whether words of somebody are in the store: those of turns, and what feedback says of them."""

from collections.abc import Collection, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, or_, select

from core import codec
from core.clock import to_micros
from core.events import Completion, Outcome
from core.ids import Namespace, SessionId
from core.operations.erasures import ErasedKind, Erasure, is_erased
from core.store.database import tables
from core.store.database.repository import Repository

_PART: Final = 400  # turns, or sessions, of one statement
_turn = codec.decoder(Completion).decode
_outcome = codec.decoder(Outcome).decode
_turns, _outcomes = tables.turns.c, tables.outcomes.c
_SAYS_LITTLE: Final = (_turns.transcript_digest.is_(None), _turns.trainable.is_(False))
"""So are tombstones, turns without words, and few others."""


class WordsReader(Repository):
    """What there is to erase, and whether more of it came."""

    def was_erased(self, namespace: Namespace, session: SessionId) -> bool:
        """Return whether turns of a session are tombstones, of which nobody knows any more whose they were."""
        here = _turns.namespace == namespace, _turns.session_id == session, _turns.user_id.is_(None), *_SAYS_LITTLE
        return any(is_erased(_turn(row.record)) for row in self._rows(_turns.record, *here))

    def are_here(self, namespace: Namespace, kind: ErasedKind, subject: str, until: datetime) -> bool:
        """Return whether anything that was said before that time is here with its words.

        By a user, in a session, or in a namespace: in turns, or in feedback on these turns and on their sessions."""
        of = _of(namespace, kind, subject)
        if self._are_turns((*of, _turns.received_at < to_micros(until))):
            return True
        return self._is_feedback(namespace, of, (), (_outcomes.received_at < to_micros(until),))

    def came_since(self, order: Erasure, until: datetime) -> bool:
        """Return whether more of what an order means came after it, and before that time."""
        of = _of(order.namespace, order.kind, order.subject)
        since, end = to_micros(order.ordered_at), to_micros(until)
        if self._are_turns((*of, _turns.received_at >= since, _turns.received_at < end)):
            return True
        came = _outcomes.received_at >= since, _outcomes.received_at < end
        return self._is_feedback(order.namespace, of, order.sessions, came)

    def _are_turns(self, chosen: tuple[ColumnElement[bool], ...]) -> bool:
        stored = or_(_turns.transcript_digest.is_not(None), _turns.trainable.is_(True))
        if self._connection.execute(select(_turns.inference_id).where(*chosen, stored).limit(1)).first() is not None:
            return True
        rest = self._rows(_turns.record, *chosen, *_SAYS_LITTLE)
        return any(turn.unstored is None and not is_erased(turn) for turn in (_turn(row.record) for row in rest))

    def _is_feedback(
        self,
        namespace: Namespace,
        of: tuple[ColumnElement[bool], ...],
        sessions: Collection[SessionId],
        came: tuple[ColumnElement[bool], ...],
    ) -> bool:
        """Return whether feedback with words came, on these turns, on their sessions, or on other sessions."""
        rows = self._connection.execute(select(_turns.inference_id, _turns.session_id).where(*of)).all()
        asked = [_outcomes.inference_id.in_(part) for part in _parts([row.inference_id for row in rows])]
        asked += [_outcomes.session_id.in_(part) for part in _parts({row.session_id for row in rows} | {*sessions})]
        here = _outcomes.namespace == namespace
        found = (row for each in asked for row in self._rows(_outcomes.record, here, each, *came))
        return any(_has_words(_outcome(row.record)) for row in found)

    def _rows(self, column: ColumnElement[bytes], *chosen: ColumnElement[bool]) -> Iterator[Row[Any]]:
        """Yield rows as they are wanted: the first one may be enough."""
        query = select(column).where(*chosen).execution_options(yield_per=_PART)
        with self._connection.execute(query) as rows:
            yield from rows


def _of(namespace: Namespace, kind: ErasedKind, subject: str) -> tuple[ColumnElement[bool], ...]:
    mine = _turns.namespace == namespace
    if kind == "user":
        return mine, _turns.user_id == subject
    return (mine, _turns.session_id == subject) if kind == "session" else (mine,)


def _has_words(outcome: Outcome) -> bool:
    says = isinstance(outcome.value, str) or outcome.evidence is not None or outcome.edits or outcome.tags
    return bool(says) and not is_erased(outcome)


def _parts(ids: Collection[str]) -> Iterator[list[str]]:
    left = iter(ids)
    while part := list(islice(left, _PART)):
        yield part
