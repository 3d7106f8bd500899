"""Turns as they were logged."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
from sqlalchemy import ColumnElement, func, select, true

from core import codec
from core.clock import to_micros
from core.events import Completion, Purpose
from core.ids import BASE, InferenceId, Namespace, SessionId, UserHash
from core.operations.consents import ConsentSubject
from core.operations.exclusions import Exclusion
from core.store.accounts.consents import ConsentsReader
from core.store.database import tables
from core.store.database.repository import Repository
from core.store.database.statements import insert_new
from core.store.newest.taking_turns import taking_turns, without_a_majority

_encode = codec.encoder().encode
_decode_turn = codec.decoder(Completion).decode


class _MadeCall(msgspec.Struct, frozen=True):
    id: str


class MadeTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a turn by which somebody's event may know it: read from its record, of which the rest is skipped."""

    inference_id: InferenceId
    received_at: datetime
    purpose: Purpose
    tool_calls: tuple[_MadeCall, ...] = ()


class SaidTurn(MadeTurn, frozen=True, kw_only=True):
    """The same with the words, and with whose they are."""

    session_id: SessionId
    user_id: UserHash | None = None
    key_id: str | None = None
    text: str = ""


class Maker(msgspec.Struct, frozen=True):
    """Whose turns are meant: a user's, or else those that a key asked for, or nobody's key where it is None."""

    user_id: UserHash | None
    key_id: str | None

    @property
    def made(self) -> ColumnElement[bool]:
        """The condition that a turn is hers."""
        known = tables.turns.c
        return known.key_id == self.key_id if self.user_id is None else known.user_id == self.user_id


_decode_made = codec.decoder(MadeTurn).decode
_decode_said = codec.decoder(SaidTurn).decode
_AT_ONCE = 16  # records that are fetched
_MOST_IDS = 500  # that one query names
_NEWEST = 2000  # turns among which texts are chosen; most of them are not read whole
_MOST_EMPTY = 2  # turns read for each text that is asked for, since some have none
_FINISHED = ("stop", "length", "tool_calls")


def first_id(at: datetime) -> str:
    """Return what no inference id of that millisecond comes before: they are UUIDs of version 7 (RFC 9562)."""
    digits = f"{max(0, to_micros(at) // 1000):012x}"
    return f"{digits[:8]}-{digits[8:12]}"


def _turn_row(turn: Completion) -> dict[str, object]:
    last = turn.policy_versions[-1].version if turn.policy_versions else None
    return {
        "inference_id": turn.inference_id,
        "session_id": turn.session_id,
        "namespace": turn.namespace,
        "turn_index": turn.turn_index,
        "parent_id": turn.parent_id,
        "user_id": turn.user_id,
        "key_id": turn.key_id,
        "workload": turn.workload,
        "purpose": turn.purpose,
        "client": turn.client,
        "protocol": turn.protocol,
        "arm": turn.arm,
        "received_at": to_micros(turn.received_at),
        "policy": BASE if last is None else last.policy,
        "policy_version": None if last is None else last.version,
        "finish_reason": turn.finish_reason,
        "trainable": turn.trainable,
        "learn": turn.learn,
        "transcript_digest": turn.transcript_digest,
        "record": _encode(turn),
    }


class TurnsReader(Repository):
    """The turns, as they were logged."""

    def get_many(self, inference_ids: Iterable[InferenceId]) -> dict[InferenceId, Completion]:
        """Return those of the given turns that are in the store."""
        table = tables.turns
        rows = self._connection.execute(
            select(table.c.inference_id, table.c.record).where(table.c.inference_id.in_(list(inference_ids)))
        )
        return {InferenceId(row.inference_id): _decode_turn(row.record) for row in rows}

    def newest_texts(self, count: int) -> list[tuple[int, ...]]:
        """Return the newest prompts with their answers, as token ids, of finished turns that may be learned from.

        Only the newest turns of all are looked at; namespaces take turns, and in each its users (or sessions), so that
        who is busy does not hide the rest. Of one there are no more than of all others together."""
        turns = tables.turns.c
        columns = turns.inference_id, turns.namespace, turns.user_id, turns.session_id, turns.learn, turns.finish_reason
        newest = select(*columns).order_by(turns.inference_id.desc()).limit(_NEWEST)  # an id begins with the time
        rows = [row for row in self._connection.execute(newest) if row.learn and row.finish_reason in _FINISHED]
        by_id = {row.inference_id: (row.namespace, row.user_id or row.session_id) for row in rows}
        ids = taking_turns((*speaker, inference_id) for inference_id, speaker in by_id.items())
        found = ConsentsReader(self._connection).heeded(self.get_many(ids[: _MOST_EMPTY * count]))
        read = [each for each in ids if each in found and found[each].learn]
        said = [(by_id[each], found[each]) for each in read if found[each].token_ids]
        return [turn.prompt_token_ids + turn.token_ids for turn in without_a_majority(said[:count])]

    def get(self, namespace: Namespace, inference_id: InferenceId) -> Completion | None:
        table = tables.turns
        record = self._connection.execute(
            select(table.c.record).where(table.c.inference_id == inference_id, table.c.namespace == namespace)
        ).scalar()
        return None if record is None else _decode_turn(record)

    def said_since(
        self, namespace: Namespace, after: datetime, limit: int, maker: Maker | None = None
    ) -> list[SaidTurn]:
        """Return the turns of a namespace whose ids were made since then, the newest first, at most `limit`.

        Where a maker is given, they are hers alone, and she may be one whom others' turns outnumber by far. No turn
        that was received since then has an older id."""
        known = tables.turns.c
        made = () if maker is None else (maker.made,)
        rows = self._connection.execute(
            select(known.record)
            .where(known.namespace == namespace, known.inference_id >= first_id(after), *made)
            .order_by(known.inference_id.desc())  # which begins with the time
            .limit(limit)
        )
        return [_decode_said(row.record) for row in rows]

    def made_since(self, namespace: Namespace, session_id: SessionId, after: datetime, limit: int) -> list[MadeTurn]:
        """Return the same of a session.

        Its ids are asked for alone: a query with the time in it may walk all that the namespace has had since then."""
        known = tables.turns.c
        newest = [each for each in self._newest_ids(namespace, session_id) if each >= first_id(after)][:limit]
        rows = self._connection.execute(
            select(known.record).where(known.inference_id.in_(newest)).order_by(known.inference_id.desc())
        )
        return [_decode_made(row.record) for row in rows]

    def _newest_ids(self, namespace: Namespace, session_id: SessionId) -> list[InferenceId]:
        """Return the ids of a session's turns, the newest first: they begin with the time."""
        known = tables.turns.c
        query = select(known.inference_id).where(known.namespace == namespace, known.session_id == session_id)
        return sorted(map(InferenceId, self._connection.execute(query).scalars()), reverse=True)

    def teaching(
        self, subject: ConsentSubject, before: datetime | None, after: InferenceId | None, limit: int
    ) -> list[InferenceId]:
        """Return the ids of a user's or a session's turns that may be learned from, as they were logged.

        They are those of before that moment (None: all), in order, at most so many, from behind one of them."""
        known = tables.turns.c
        hers = known.user_id if subject.kind == "user" else known.session_id
        query = select(known.inference_id).where(known.namespace == subject.namespace, hers == subject.name)
        query = query.where(known.learn, known.inference_id > (after or ""))
        if before is not None:
            query = query.where(known.inference_id < first_id(before))
        query = query.order_by(known.inference_id).limit(limit)
        return [InferenceId(each) for each in self._connection.execute(query).scalars()]

    def which_of(self, namespace: Namespace, inference_ids: Collection[InferenceId]) -> set[InferenceId]:
        """Return those of the given turns that the namespace has."""
        known = tables.turns.c
        rows = self._connection.execute(
            select(known.inference_id).where(known.inference_id.in_(inference_ids), known.namespace == namespace)
        )
        return {InferenceId(row.inference_id) for row in rows}

    def of_session(self, namespace: Namespace, session_id: SessionId) -> list[Completion]:
        table = tables.turns
        rows = self._connection.execute(
            select(table.c.record)
            .where(table.c.namespace == namespace, table.c.session_id == session_id)
            .order_by(table.c.turn_index, table.c.received_at, table.c.inference_id)
        )
        return [_decode_turn(row.record) for row in rows]

    def newest_of_session(
        self, namespace: Namespace, session_id: SessionId, most: int, most_bytes: int
    ) -> tuple[list[Completion], bool]:
        """Return the newest turns of a session, in its order, and whether these are all.

        They are at most so many, and their records so many bytes; the newest is there in any case."""
        known, newest = tables.turns.c, self._newest_ids(namespace, session_id)
        rows = self._connection.execute(
            select(known.record).where(known.inference_id.in_(newest[:most])).order_by(known.inference_id.desc()),
            execution_options={"yield_per": _AT_ONCE},
        )
        turns, size = list[Completion](), 0
        for row in rows:
            size += len(row.record)
            if turns and size > most_bytes:
                break
            turns.append(_decode_turn(row.record))
        rows.close()
        in_order = sorted(turns, key=lambda turn: (turn.turn_index, turn.received_at, turn.inference_id))
        return in_order, len(turns) == len(newest)

    def parents(self, namespace: Namespace, session_id: SessionId) -> dict[InferenceId, InferenceId | None]:
        """Return the turns of a session, each with the one that it continues."""
        table = tables.turns
        rows = self._connection.execute(
            select(table.c.inference_id, table.c.parent_id).where(
                table.c.namespace == namespace, table.c.session_id == session_id
            )
        )
        return {InferenceId(row.inference_id): row.parent_id and InferenceId(row.parent_id) for row in rows}

    def following(self, turn: Completion, most: int | None = None) -> list[Completion]:
        """Return the turns that continue one, the first first: several where its session branches there."""
        table = tables.turns
        rows = self._connection.execute(
            select(table.c.record)
            .where(table.c.namespace == turn.namespace, table.c.session_id == turn.session_id)
            .where(table.c.parent_id == turn.inference_id)
            .order_by(table.c.turn_index, table.c.received_at, table.c.inference_id)
            .limit(most)
        )
        return [_decode_turn(row.record) for row in rows]

    def count(self, what: Exclusion) -> int:
        """Count the turns that an exclusion covers, whatever was said of them. It may look at all turns."""
        known = tables.turns.c
        asked: list[ColumnElement[bool]] = []
        if what.namespace is not None:
            asked.append(known.namespace == what.namespace)
        if what.users:
            asked.append(known.user_id.in_(what.users))
        if what.begin is not None:
            asked.append(known.received_at >= to_micros(what.begin))
        if what.end is not None:
            asked.append(known.received_at < to_micros(what.end))
        ids = sorted(what.turns)
        pages = [ids[start : start + _MOST_IDS] for start in range(0, len(ids), _MOST_IDS)]
        chosen: list[ColumnElement[bool]] = [known.inference_id.in_(page) for page in pages]
        return sum(
            self._connection.execute(select(func.count()).where(*asked, each).select_from(tables.turns)).scalar() or 0
            for each in chosen or [true()]
        )

    def sessions(self) -> Iterator[tuple[Namespace, SessionId]]:
        """Iterate over the sessions of all turns, each once, in order."""
        known = tables.turns.c
        query = select(known.namespace, known.session_id).distinct().order_by(known.namespace, known.session_id)
        for namespace, session_id in self._connection.execute(query):
            yield Namespace(namespace), SessionId(session_id)

    def has_session(self, namespace: Namespace, session_id: SessionId) -> bool:
        table = tables.turns
        query = (
            select(table.c.inference_id)
            .where(table.c.namespace == namespace, table.c.session_id == session_id)
            .limit(1)
        )
        return self._connection.execute(query).first() is not None

    def sessions_among(self, namespace: Namespace, session_ids: Collection[SessionId]) -> set[SessionId]:
        """Return those of the given sessions of which the namespace has a turn."""
        known = tables.turns.c
        rows = self._connection.execute(
            select(known.session_id).where(known.namespace == namespace, known.session_id.in_(session_ids)).distinct()
        )
        return {SessionId(row.session_id) for row in rows}

    def has_others(self, namespace: Namespace, session_id: SessionId, user: UserHash) -> bool:
        """Return whether a session has a turn that is not this user's."""
        table = tables.turns
        others = table.c.user_id.is_(None) | (table.c.user_id != user)
        in_session = table.c.namespace == namespace, table.c.session_id == session_id
        return (
            self._connection.execute(select(table.c.inference_id).where(*in_session, others).limit(1)).first()
            is not None
        )

    def find_transcript(
        self, namespace: Namespace, digests: Sequence[str], session_id: SessionId | None = None
    ) -> Completion | None:
        """Return the latest turn whose transcript has the first of `digests` that is known.

        Only turns of the given session count, if there is one."""
        if session_id is not None:
            return self._find_in_session(namespace, digests, session_id)
        table = tables.turns
        here = table.c.namespace == namespace
        known = select(table.c.inference_id).where(here, table.c.transcript_digest.in_(list(digests))).limit(1)
        if self._connection.execute(known).first() is None:
            return None
        latest = select(table.c.record).order_by(table.c.received_at.desc()).limit(1)
        for digest in digests:  # one by one: a short transcript may be that of very many turns
            record = self._connection.execute(latest.where(here, table.c.transcript_digest == digest)).scalar()
            if record is not None:
                return _decode_turn(record)
        return None

    def _find_in_session(
        self, namespace: Namespace, digests: Sequence[str], session_id: SessionId
    ) -> Completion | None:
        table = tables.turns
        rows = self._connection.execute(
            select(table.c.transcript_digest, table.c.inference_id)
            .where(table.c.namespace == namespace, table.c.session_id == session_id)
            .order_by(table.c.received_at)
        )
        latest = {row.transcript_digest: row.inference_id for row in rows}
        found = next((latest[digest] for digest in digests if digest in latest), None)
        return None if found is None else self.get(namespace, found)


class Turns(TurnsReader):
    """The turns, each written once, by the writer alone."""

    def put(self, turns: Sequence[Completion]) -> int:
        """Store turns, and return how many were new."""
        return insert_new(self._connection, tables.turns, [_turn_row(turn) for turn in turns])
