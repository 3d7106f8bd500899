"""The rows of what is erased: each becomes a tombstone, which keeps its ids, or goes.

A sweep may be repeated: what is a tombstone already stays one, and is counted like the others."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, Update, and_, delete, func, or_, select, true, update

from core import codec
from core.clock import from_micros, to_micros
from core.events import Completion, Event, Outcome, Reward
from core.ids import InferenceId, Namespace, SessionId, UserHash
from core.operations.erasures import ERASED, Erasure, is_erased, tombstone
from core.store.database import tables
from core.store.database.repository import Repository
from core.text.named import names

Left = Callable[[Event], Event]
"""What is left of an event: itself, where nothing of it goes."""
_PART: Final = 400  # sessions, or turns, of one statement
_encode = codec.encoder().encode
_turn = codec.decoder(Completion).decode
_outcome = codec.decoder(Outcome).decode
_reward = codec.decoder(Reward).decode


class SweepsReader(Repository):
    """What is of a user or a session, by its ids."""

    def sessions_of(self, namespace: Namespace, user: UserHash, until: datetime) -> list[SessionId]:
        """Return the sessions in which a user spoke before that time."""
        turns = tables.turns.c
        chosen = turns.namespace == namespace, turns.user_id == user, turns.received_at < to_micros(until)
        rows = self._connection.execute(select(turns.session_id).where(*chosen).distinct().order_by(turns.session_id))
        return [SessionId(row.session_id) for row in rows]

    def sessions_in(self, namespace: Namespace, until: datetime) -> list[SessionId]:
        """Return the sessions of a namespace that have a turn of before that time."""
        turns = tables.turns.c
        chosen = turns.namespace == namespace, turns.received_at < to_micros(until)
        rows = self._connection.execute(select(turns.session_id).where(*chosen).distinct().order_by(turns.session_id))
        return [SessionId(row.session_id) for row in rows]

    def places_of(self, turns: Iterable[InferenceId]) -> Iterator[tuple[InferenceId, Namespace, SessionId, datetime]]:
        """Yield of each of these turns that the store has its id, namespace, session and arrival."""
        table = tables.turns.c
        columns = table.inference_id, table.namespace, table.session_id, table.received_at
        for part in _parts(turns):
            for row in self._connection.execute(select(*columns).where(table.inference_id.in_(part))).all():
                yield row.inference_id, row.namespace, row.session_id, from_micros(row.received_at)

    def turns_in(self, namespace: Namespace, sessions: Iterable[SessionId], until: datetime) -> list[InferenceId]:
        """Return the turns of sessions that arrived before that time, in the order of their ids."""
        turns, found = tables.turns.c, list[InferenceId]()
        for part in _parts(sessions):
            chosen = turns.namespace == namespace, turns.session_id.in_(part), turns.received_at < to_micros(until)
            rows = self._connection.execute(select(turns.inference_id).where(*chosen))
            found += [InferenceId(row.inference_id) for row in rows]
        return sorted(found)

    def of_others(self, namespace: Namespace, sessions: Iterable[SessionId], user: UserHash) -> int:
        """Count the turns of these sessions that are not this user's."""
        turns, found = tables.turns.c, 0
        for part in _parts(sessions):
            here = turns.namespace == namespace, turns.session_id.in_(part)
            others = turns.user_id.is_not(None), turns.user_id != user
            found += len(self._connection.execute(select(turns.inference_id).where(*here, *others)).all())
        return found

    def with_more(self, orders: Sequence[Erasure]) -> list[Erasure]:
        """Return the orders of which turns are here with their words, as a spool may bring them late."""
        first = self._first_words([order for order in orders if order.kind == "user"])
        return [
            order
            for order in orders
            if (
                order.kind == "user"
                and first.get((order.namespace, order.subject), math.inf) < to_micros(order.ordered_at)
            )
            or self._has_more(order)
        ]

    def _first_words(self, orders: Sequence[Erasure]) -> dict[tuple[str, str], int]:
        """Return when the first turn of each order's user arrived that is here; one query is for many users."""
        turns, found = tables.turns.c, dict[tuple[str, str], int]()
        for namespace in {order.namespace for order in orders}:
            for part in _parts({order.subject for order in orders if order.namespace == namespace}):
                query = select(turns.user_id, func.min(turns.received_at).label("at")).group_by(turns.user_id)
                query = query.where(turns.namespace == namespace, turns.user_id.in_(part))
                found |= {(namespace, row.user_id): row.at for row in self._connection.execute(query)}
        return found

    def _has_more(self, order: Erasure) -> bool:
        """Return whether turns of an order's sessions are here with their words, or of its namespace."""
        turns = tables.turns.c
        is_whole = or_(turns.learn.is_(True), turns.user_id.is_not(None), turns.transcript_digest.is_not(None))
        mine = turns.namespace == order.namespace, turns.received_at < to_micros(order.ordered_at), is_whole
        query = select(turns.inference_id).where(*mine).limit(1)
        asked = [query.where(turns.session_id.in_(part)) for part in _parts(order.sessions)]
        if order.kind == "namespace":
            asked = [query]
        return any(self._connection.execute(each).first() is not None for each in asked)


class Sweeps(SweepsReader):
    """What is erased in the store: by the API at once, by the eraser again once all readers of the log have passed."""

    def redact(
        self, namespace: Namespace, sessions: Sequence[SessionId], until: datetime
    ) -> tuple[dict[str, int], list[str]]:
        """Redact all that is known of the turns of sessions before that time.

        Returns how many rows there are of it, by table, and their ids, in order."""
        turns = self.turns_in(namespace, sessions, until)
        counts = {
            "turns": self._replace(tables.turns, update(tables.turns), _turn, turns, _turn_left),
            "rewards": self._replace(tables.rewards, update(tables.rewards), _reward, turns, _reward_left),
            "outcomes": self._outcomes(turns) + self._outcomes_of_sessions(namespace, sessions, until),
            "ledger_turns": self._ledger(turns),
            "ledger_outcomes": self._ledger_outcomes(namespace, sessions, turns, until),
            "dead_letters": self._letters(namespace, {*turns, *sessions}),
        }
        return {name: count for name, count in counts.items() if count}, [*turns]

    def redact_subject(self, order: Erasure) -> dict[str, int]:
        """Remove what is known of an order's user beside turns: the reasons of words of consent, and what was spent.

        What was allowed stays, since it holds on. Returns how many rows there were, by table."""
        counts = {"consents": self._reasons(order), "spending": self._spending(order)}
        return {name: count for name, count in counts.items() if count}

    def _reasons(self, order: Erasure) -> int:
        c = tables.consents.c
        query = select(c.consent_id, c.exclusion_id).where(c.namespace == order.namespace)
        query = query.where(c.at < to_micros(order.ordered_at))
        rows = [row for each in _about(order, c.kind, c.subject) for row in self._connection.execute(query.where(each))]
        for part in _parts(row.consent_id for row in rows):
            self._connection.execute(update(tables.consents).where(c.consent_id.in_(part)).values(why=""))
        e = tables.exclusions.c
        for part in _parts({row.exclusion_id for row in rows} - {None}):
            chosen = e.exclusion_id.in_(part)
            self._connection.execute(update(tables.exclusions).where(chosen).values(why=ERASED))
            was_lifted = chosen, e.lifted_why.is_not(None)
            self._connection.execute(update(tables.exclusions).where(*was_lifted).values(lifted_why=ERASED))
        self._copied_reasons(order)
        return len(rows)

    def _copied_reasons(self, order: Erasure) -> None:
        """Empty the reasons of consent in orders to erase: earlier builds copied them there."""
        c = tables.erasures.c
        earlier = c.namespace == order.namespace, c.ordered_at <= to_micros(order.ordered_at)
        for about in _about(order, c.kind, c.subject):
            for kind in ("user", "session"):
                why = f"consent of a {kind}"
                copied = *earlier, about, c.why.startswith(f"{why}: ", autoescape=True)
                self._connection.execute(update(tables.erasures).where(*copied).values(why=why))

    def _spending(self, order: Erasure) -> int:
        c = tables.spending.c
        chosen = [c.namespace == order.namespace, c.kind == "user"]
        if order.kind == "session":
            return 0
        if order.kind == "user":
            chosen.append(c.name == order.subject)
        return self._connection.execute(delete(tables.spending).where(*chosen)).rowcount

    def age(self, namespace: Namespace, left: Left, after: str, limit: int) -> tuple[int, str, bool]:
        """Replace what is left of the next turns after an id, and of their rewards, where that is less.

        Returns (how many rows lost something, the last turn's id, whether these were the last turns)."""
        turns = tables.turns.c
        chosen = turns.namespace == namespace, turns.inference_id > after
        query = select(turns.inference_id).where(*chosen).order_by(turns.inference_id).limit(limit)
        ids = [row.inference_id for row in self._connection.execute(query)]
        changed = 0
        for part in _parts(ids):
            is_turn, is_reward = turns.inference_id.in_(part), tables.rewards.c.inference_id.in_(part)
            changed += self._age(tables.turns, is_turn, update(tables.turns), _turn, left, _aged_turn)
            changed += self._age(tables.rewards, is_reward, update(tables.rewards), _reward, left, _reward_left)
        return changed, ids[-1] if ids else after, len(ids) < limit

    def age_outcomes(self, namespace: Namespace, left: Left, after: str, limit: int) -> tuple[int, str, bool]:
        """Replace what is left of the next outcomes after an id, here and in the ledger, as `age` does of turns."""
        both = (
            (tables.outcomes, update(tables.outcomes), _aged_outcome),
            (tables.ledger_outcomes, update(tables.ledger_outcomes), _aged_record),
        )
        known = set[str]()
        for table, _, _ in both:
            chosen = table.c.namespace == namespace, table.c.outcome_id > after
            query = select(table.c.outcome_id).where(*chosen).order_by(table.c.outcome_id).limit(limit)
            known.update(row.outcome_id for row in self._connection.execute(query))
        ids, changed = sorted(known)[:limit], 0
        for part in _parts(ids):
            for table, change, values in both:
                mine = and_(table.c.namespace == namespace, table.c.outcome_id.in_(part))
                changed += self._age(table, mine, change, _outcome, left, values)
        return changed, ids[-1] if ids else after, len(ids) < limit

    def _age(
        self, table: Table, chosen: ColumnElement[bool], change: Update, decode: Any, left: Left, values: Any
    ) -> int:
        count, key = 0, list(table.primary_key)
        for row in self._connection.execute(select(*key, table.c.record).where(chosen)).all():
            event = decode(row.record)
            if (new := left(event)) is not event:
                is_row = [column == getattr(row, column.name) for column in key]
                self._connection.execute(change.where(*is_row).values(values(new)))
                count += 1
        return count

    def _replace(self, table: Table, change: Update, decode: Any, turns: Iterable[InferenceId], left: Any) -> int:
        count, key = 0, list(table.primary_key)
        for part in _parts(turns):
            rows = self._connection.execute(select(*key, table.c.record).where(table.c.inference_id.in_(part))).all()
            for row in rows:
                event = decode(row.record)
                if not is_erased(event):
                    is_row = [column == getattr(row, column.name) for column in key]
                    self._connection.execute(change.where(*is_row).values(left(tombstone(event))))
            count += len(rows)
        return count

    def _outcomes(self, turns: Iterable[InferenceId]) -> int:
        return self._replace(tables.outcomes, update(tables.outcomes), _outcome, turns, _outcome_left)

    def _outcomes_of_sessions(self, namespace: Namespace, sessions: Iterable[SessionId], until: datetime) -> int:
        table, count = tables.outcomes, 0
        for part in _parts(sessions):
            chosen = table.c.namespace == namespace, table.c.session_id.in_(part), table.c.inference_id.is_(None)
            query = select(table.c.outcome_id, table.c.record).where(*chosen, table.c.received_at < to_micros(until))
            rows = self._connection.execute(query).all()
            for row in rows:
                is_row = table.c.namespace == namespace, table.c.outcome_id == row.outcome_id
                values = _outcome_left(tombstone(_outcome(row.record)))  # type: ignore[arg-type]
                self._connection.execute(update(table).where(*is_row).values(values))
            count += len(rows)
        return count

    def _ledger(self, turns: Iterable[InferenceId]) -> int:
        table, count = tables.ledger_turns, 0
        values = {"facts": None, "on_spans": None, "due_at": None, "closed": True, "value": None}
        for part in _parts(turns):
            count += self._connection.execute(
                update(table).where(table.c.inference_id.in_(part)).values(values)
            ).rowcount
        return count

    def _ledger_outcomes(
        self, namespace: Namespace, sessions: Iterable[SessionId], turns: Sequence[InferenceId], until: datetime
    ) -> int:
        table, erased = tables.ledger_outcomes, set(turns)
        gone: list[str] = []
        for part, of in [*((part, table.c.session_id) for part in _parts(sessions)),
                         *((part, table.c.inference_id) for part in _parts(turns))]:  # fmt: skip
            query = select(table.c.outcome_id, table.c.record).where(table.c.namespace == namespace, of.in_(part))
            for row in self._connection.execute(query).all():
                outcome = _outcome(row.record)
                if outcome.inference_id in erased or outcome.received_at < until:
                    gone.append(row.outcome_id)
        for part in _parts(gone):
            self._connection.execute(delete(table).where(table.c.namespace == namespace, table.c.outcome_id.in_(part)))
        return len(set(gone))

    def _letters(self, namespace: Namespace, ids: set[str]) -> int:
        """Delete the dead letters whose bytes name one of these ids: what does not decode is known by nothing else."""
        table = tables.dead_letters
        columns = table.c.topic, table.c.partition, table.c.record_offset, table.c.raw
        rows = self._connection.execute(select(*columns)) if ids else ()
        gone = [row for row in rows if names(row.raw, namespace, ids)]
        for row in gone:
            self._connection.execute(delete(table).where(_is_letter(row)))
        return len(gone)


def _about(order: Erasure, kind: ColumnElement[str], subject: ColumnElement[str]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions that choose what is about an order's user, and about its sessions."""
    if order.kind == "namespace":
        yield true()
        return
    for part in _parts(order.sessions):
        yield and_(kind == "session", subject.in_(part))
    if order.kind == "user":
        yield and_(kind == "user", subject == order.subject)


def _is_letter(row: Any) -> ColumnElement[bool]:
    table = tables.dead_letters.c
    of = table.topic == row.topic, table.partition == row.partition
    return and_(*of, table.record_offset == row.record_offset)


def _turn_left(turn: Completion) -> dict[str, object]:
    return {
        "record": _encode(turn), "user_id": None, "transcript_digest": None, "trainable": False, "learn": False,
        "client": turn.client,
    }  # fmt: skip


def _aged_turn(turn: Completion) -> dict[str, object]:
    digest = {"transcript_digest": None} if turn.unstored is not None else {}
    return {"record": _encode(turn), "trainable": turn.trainable, **digest}


def _aged_outcome(outcome: Outcome) -> dict[str, object]:
    return {"record": _encode(outcome), "content_digest": ""}


def _aged_record(event: Event) -> dict[str, object]:
    return {"record": _encode(event)}


def _reward_left(reward: Reward) -> dict[str, object]:
    return {"record": _encode(reward), "value": reward.value}


def _outcome_left(outcome: Outcome) -> dict[str, object]:
    return {"record": _encode(outcome), "content_digest": "", "withdrawn": True}


def _parts(ids: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(ids)
    while part := list(islice(left, _PART)):
        yield part
