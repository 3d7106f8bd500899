"""What users allow to be done with what they say: each word of theirs is kept, and the newest by its time holds.

A word is about all that a user says, or about one session. It narrows what requests allow by themselves; where user and
session differ, the narrower holds. It also counts for what was said before: what may not be learned from is excluded
(`core.operations.exclusions`), until a later word allows it."""

from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from core.ids import Namespace, SessionId, UserHash
from core.operations.exclusions import Selection

ConsentKind = Literal["user", "session"]
_CLUSTER: Final = "cluster "  # no API key's name has a space


class Allowed(NamedTuple):
    """Whether what is said may be learned from, and whether its words may be stored."""

    learn: bool
    store: bool

    def narrowed(self, other: "Allowed") -> "Allowed":
        return Allowed(self.learn and other.learn, self.store and other.store)


ALL: Final = Allowed(learn=True, store=True)


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """One word. `subject` is a user's hash or a session's id.

    `purposes`: for which the words are taken, as the client says them; `by`: the API key that brought the word, or the
    cluster; `exclusion_id`: the order that keeps what was said out of learning, while it may not be learned from."""

    consent_id: int = 0
    namespace: Namespace
    kind: ConsentKind
    subject: str
    learn: bool
    store: bool
    purposes: tuple[str, ...] = ()
    why: str
    by: str
    at: datetime
    exclusion_id: int | None = None

    @property
    def allows(self) -> Allowed:
        return Allowed(self.learn, self.store)

    @property
    def order(self) -> tuple[datetime, bool, bool]:
        """The greatest holds: the newest, and of two at one moment, as two clusters may have them, the narrower."""
        return self.at, not self.learn, not self.store

    @property
    def origin(self) -> str | None:
        """The cluster that it came from; None for a word that an API key brought here."""
        return self.by.removeprefix(_CLUSTER) if self.by.startswith(_CLUSTER) else None

    def told_by(self, cluster: str) -> "Consent":
        """Return it as other clusters give it."""
        return msgspec.structs.replace(self, consent_id=0, by=f"{_CLUSTER}{cluster}", exclusion_id=None)

    @property
    def selection(self) -> Selection:
        """All turns that it is about, earlier and later ones."""
        if self.kind == "user":
            return Selection(namespace=self.namespace, users=(UserHash(self.subject),))
        return Selection(namespace=self.namespace, sessions=(SessionId(self.subject),))
