"""The consents of users and sessions, as they stand."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Row, and_, exists, func, or_, select, update

from core.clock import from_micros, to_micros
from core.events import Completion
from core.ids import InferenceId, Namespace
from core.operations.consents import Consent, ConsentSubject, KeptConsent, may_teach, subjects_of
from core.store.database import tables
from core.store.database.locks import Lock, hold
from core.store.database.repository import Repository
from core.store.database.statements import upsert

_table = tables.consents
_CHUNK = 1000  # values in one IN list


class ConsentsReader(Repository):
    def revision(self) -> int:
        """Return a number that grows with every change of any consent; 0 before the first."""
        return self._connection.execute(select(func.max(_table.c.revision))).scalar() or 0

    def of(self, subjects: Iterable[ConsentSubject]) -> dict[ConsentSubject, Consent]:
        """Return the consents of those subjects that have said something."""
        return {kept.subject: kept.consent for kept in self._kept(subjects)}

    def changed_since(self, revision: int, limit: int) -> list[KeptConsent]:
        """Return the consents that changed after a revision, the first change first, at most so many."""
        query = select(_table).where(_table.c.revision > revision).order_by(_table.c.revision).limit(limit)
        return [_kept(row) for row in self._connection.execute(query)]

    def to_take_back(self, after: int, limit: int) -> list[KeptConsent]:
        """Return the withdrawals after a revision whose rewards are still to be taken back, in order."""
        query = select(_table).where(tables.TAKES_BACK, _table.c.revision > after)
        return [_kept(row) for row in self._connection.execute(query.order_by(_table.c.revision).limit(limit))]

    def still_to_take_back(self, revisions: Collection[int]) -> dict[int, bool]:
        """Return which of these withdrawals are still to be taken back, each with whether its subject has turns."""
        known, turns = _table.c, tables.turns.c
        named = {"user": turns.user_id, "session": turns.session_id}
        has_turns = or_(
            *(
                and_(known.kind == kind, exists().where(turns.namespace == known.namespace, name == known.name))
                for kind, name in named.items()
            )
        )
        query = select(known.revision, has_turns).where(tables.TAKES_BACK, known.revision.in_(revisions))
        return {revision: bool(has_any) for revision, has_any in self._connection.execute(query)}

    def heeded(self, turns: Mapping[InferenceId, Completion]) -> dict[InferenceId, Completion]:
        """Return the turns; `learn` is false in those from which nothing may be learned any more."""
        subjects = {subject for turn in turns.values() for subject in subjects_of(turn)}
        known = self.of(subjects)
        return {
            each: turn if may_teach(turn, known) else msgspec.structs.replace(turn, learn=False)
            for each, turn in turns.items()
        }

    def _kept(self, subjects: Iterable[ConsentSubject]) -> list[KeptConsent]:
        groups: dict[tuple[Namespace, str], list[str]] = defaultdict(list)
        for subject in sorted(set(subjects)):
            groups[subject.namespace, subject.kind].append(subject.name)
        found: list[KeptConsent] = []
        for (namespace, kind), names in groups.items():
            of_kind = _table.c.namespace == namespace, _table.c.kind == kind
            for start in range(0, len(names), _CHUNK):
                chosen = _table.c.name.in_(names[start : start + _CHUNK])
                found += map(_kept, self._connection.execute(select(_table).where(*of_kind, chosen)))
        return found


class Consents(ConsentsReader):
    """The consents. Those who read one and then write it hold them: `hold`."""

    def hold(self) -> None:
        """Hold all consents until the transaction ends: nobody else changes one meanwhile."""
        hold(self._connection, Lock.CONSENTS)

    def put(self, subject: ConsentSubject, consent: Consent, *, takes_back: bool) -> None:
        """Store how a consent is from now on.

        `takes_back`: the rewards of the subject's turns are to be taken back; `taken_back` notes when they are."""
        self.hold()
        row = {
            **subject._asdict(),
            "learn": consent.learn,
            "store": consent.store,
            "learn_since": None if consent.learn_since is None else to_micros(consent.learn_since),
            "changed_at": None if consent.changed_at is None else to_micros(consent.changed_at),
            "changed_by": consent.changed_by,
            "takes_back": takes_back,
            "revision": self.revision() + 1,
        }
        upsert(self._connection, _table, [row])

    def taken_back(self, withdrawals: Collection[KeptConsent]) -> None:
        """Note that the rewards were taken back, unless the subject's consent has changed since."""
        for kept in withdrawals:
            of_it = [_table.c[name] == value for name, value in kept.subject._asdict().items()]
            same = _table.c.revision == kept.revision
            self._connection.execute(update(_table).where(*of_it, same).values(takes_back=False))


def _kept(row: Row[Any]) -> KeptConsent:
    consent = Consent(
        learn=row.learn,
        store=row.store,
        learn_since=None if row.learn_since is None else from_micros(row.learn_since),
        changed_at=None if row.changed_at is None else from_micros(row.changed_at),
        changed_by=row.changed_by,
    )
    return KeptConsent(
        subject=ConsentSubject(row.namespace, row.kind, row.name), consent=consent, revision=row.revision
    )
