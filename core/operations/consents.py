"""What users and sessions consent to: kept until it is changed, and effective backwards."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from core.events import Completion
from core.ids import Namespace

SubjectKind = Literal["user", "session"]


class ConsentSubject(NamedTuple):
    """Whose consent it is."""

    namespace: Namespace
    kind: SubjectKind
    name: str  # a user's keyed hash, or the id of a session


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """What may be done with a subject's turns.

    `learn`: whether they may be learned from, those too that were logged before; `store`: whether the words of turns
    that are yet to come may be stored. Nothing is learned from what may not be stored. `learn_since`: consent to
    learning that was given again does not reach back beyond this; None: it was never withdrawn."""

    learn: bool = True
    store: bool = True
    learn_since: datetime | None = None
    changed_at: datetime | None = None  # None: nobody has said anything
    changed_by: str | None = None  # the name or the fingerprint of the API key

    def changed(self, learn: bool | None, store: bool | None, now: datetime, by: str) -> "Consent":
        """Return it as it is from now on; None: as it was. Who withdraws `store` withdraws `learn` with it."""
        stores = self.store if store is None else store
        learns = stores and (self.learn if learn is None else learn)
        since = now if learns and not self.learn else self.learn_since
        return Consent(learn=learns, store=stores, learn_since=since, changed_at=now, changed_by=by)

    def may_teach(self, turn: Completion) -> bool:
        return self.learn and (self.learn_since is None or turn.received_at >= self.learn_since)


class KeptConsent(msgspec.Struct, frozen=True, kw_only=True):
    """A consent as the store has it. `revision` grows with every change of any."""

    subject: ConsentSubject
    consent: Consent
    revision: int


UNSAID: Final = Consent()


def subjects_of(turn: Completion) -> list[ConsentSubject]:
    """Return those whose consent a turn needs: its session, and its user where it names one."""
    session = ConsentSubject(turn.namespace, "session", turn.session_id)
    return [session] if turn.user_id is None else [session, ConsentSubject(turn.namespace, "user", turn.user_id)]


def may_teach(turn: Completion, known: Mapping[ConsentSubject, Consent]) -> bool:
    """Return whether a turn may be learned from, by its own word and by all that is kept."""
    return turn.learn and all(known.get(each, UNSAID).may_teach(turn) for each in subjects_of(turn))


def narrowest(consents: Iterable[Consent]) -> Consent:
    """Return what all of them allow."""
    found = list(consents)
    return Consent(learn=all(each.learn for each in found), store=all(each.store for each in found))
