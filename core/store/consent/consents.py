"""The words of users on what may be done with what they say. The newest of a subject, by its time, holds.

None is ever changed, but for its reason, by an erasure. One that came from another cluster may be older than others."""

from typing import Any

import msgspec
from sqlalchemy import Row, and_, exists, func, insert, not_, select, tuple_

from core import codec
from core.clock import from_micros, to_micros
from core.ids import Namespace
from core.operations.consents import Consent, ConsentKind
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository

_table = tables.consents
_encode = codec.encoder().encode
_purposes = codec.decoder(tuple[str, ...]).decode


class ConsentsReader(Repository):
    def newest(self, namespace: Namespace, kind: ConsentKind, subject: str, limit: int) -> list[Consent]:
        """Return a subject's newest words, the newest first: the first one holds."""
        c = _table.c
        query = select(_table).where(c.namespace == namespace, c.kind == kind, c.subject == subject)
        query = query.order_by(c.at.desc(), c.learn, c.store, c.consent_id.desc()).limit(limit)
        return [_consent(row) for row in self._connection.execute(query)]

    def after(self, consent_id: int, limit: int) -> list[Consent]:
        """Return the words after one, of everybody, by their numbers, in which they become visible."""
        query = select(_table).where(_table.c.consent_id > consent_id).order_by(_table.c.consent_id).limit(limit)
        return [_consent(row) for row in self._connection.execute(query)]

    def holding_after(self, consent_id: int) -> list[Consent]:
        """Return those of the words after one that hold, by their numbers."""
        c, other = _table.c, _table.alias("other")
        o = other.c
        is_same = o.namespace == c.namespace, o.kind == c.kind, o.subject == c.subject
        is_newer = tuple_(o.at, not_(o.learn), not_(o.store), o.consent_id) > tuple_(
            c.at, not_(c.learn), not_(c.store), c.consent_id
        )
        query = select(_table).where(c.consent_id > consent_id, ~exists().where(and_(*is_same, is_newer)))
        return [_consent(row) for row in self._connection.execute(query.order_by(c.consent_id))]

    def last(self) -> int:
        """Return the number of the last word that came, 0 where there is none."""
        return self._connection.execute(select(func.max(_table.c.consent_id))).scalar() or 0

    def standing_on(self, exclusion_id: int) -> Consent | None:
        """Return the word that an order to exclude stands for, if it still holds."""
        query = select(_table).where(_table.c.exclusion_id == exclusion_id).order_by(_table.c.consent_id.desc())
        row = self._connection.execute(query.limit(1)).one_or_none()
        if row is None:
            return None
        (newest,) = self.newest(row.namespace, row.kind, row.subject, 1)
        return newest if newest.exclusion_id == exclusion_id else None


class Consents(ConsentsReader):
    """The words; the API brings them, and those of other clusters come through their bucket."""

    def hold(self) -> None:
        """Let no other word be stored before this unit of work ends."""
        hold(self._connection, Lock.CONSENTS)

    def add(self, consent: Consent) -> Consent:
        """Store a word, after `hold`, and return it with its number."""
        values = msgspec.structs.asdict(consent)
        del values["consent_id"]
        values |= {"purposes": _encode(consent.purposes), "at": to_micros(consent.at)}
        result = self._connection.execute(insert(_table).values(values))
        assert result.inserted_primary_key is not None
        return msgspec.structs.replace(consent, consent_id=int(result.inserted_primary_key[0]))


def _consent(row: Row[Any]) -> Consent:
    values = dict(row._mapping)
    values |= {"purposes": _purposes(row.purposes), "at": from_micros(row.at)}
    return Consent(**values)
