"""What clusters say of themselves in the bucket that they share."""

from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from core.ids import Namespace, PolicyRef, SessionId
from core.operations.consents import Consent
from core.operations.erasures import ErasedKind


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster: the version that it serves, and how far it has followed home's releases.

    `needs`: the versions of all policies that it serves or may go back to, whose weights home keeps for it. `unsent`
    counts the records that home has not been sent yet; `at`: when it said so."""

    cluster: str
    role: Literal["home", "edge"] = "edge"
    live: PolicyRef | None
    followed: int
    needs: tuple[PolicyRef, ...] = ()
    unsent: int
    at: datetime


class ClusterStanding(NamedTuple):
    status: ClusterStatus
    behind: int
    """How many of home's releases it has not followed yet."""


class ErasureNotice(msgspec.Struct, frozen=True, kw_only=True):
    """An order to erase that one cluster gave, for all others to give as well; it names nobody but by hash and id.

    An organisation's has its `namespaces`, and as `parts` the names of the orders for these."""

    origin: str
    number: int
    namespace: Namespace
    kind: ErasedKind
    subject: str
    sessions: tuple[SessionId, ...]
    ordered_at: datetime
    deadline_at: datetime
    namespaces: tuple[Namespace, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.origin}/{self.number}"


class ErasureReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far a cluster has obeyed another's order, or home its own.

    `withdrawn` has the digests of the versions that lost their weights, once home knows them; `statement` is what the
    cluster signed at its end."""

    cluster: str
    withdrawn: tuple[str, ...] | None = None
    statement: str | None = None


class ConsentNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A word of consent that a cluster was brought, for all others to give as well.

    `number` counts this cluster's own words, without gaps. Its reason is empty once it is erased."""

    origin: str
    number: int
    word: Consent
