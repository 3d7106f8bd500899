"""The state that a fleet of engines reports, and the state that is wanted; one row per replica in the store.

release controller ──ReplicaTarget──► host (`onward serve`, or the embedded engine's own)
host ──ReplicaStatus──► release controller, and the router in every API replica
release controller ──Experiment──► the router, which assigns users to arms"""

from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from core.events import Arm
from core.ids import PolicyRef

Lane = Literal["live", "canary", "holdback"]
ReplicaState = Literal["starting", "ready", "swapping", "draining", "failed"]
OrderKind = Literal["promote", "rollback", "hold", "unhold", "pin", "unpin"]
GUARD: Final = "guard"
"""Who gives the orders that nobody gave: no API key is called so."""


class ReplicaTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The version that a replica must serve.

    Written by the release controller, read by the replica's host and by the routers."""

    name: str
    lane: Lane
    serve: PolicyRef
    hold: tuple[PolicyRef, ...]  # to be verified on the host and kept ready; `serve` is among them
    avoid: tuple[PolicyRef, ...] = ()  # rolled back: an engine that still serves one of these takes no new requests
    doubt: tuple[PolicyRef, ...] = ()  # computed no finite numbers for somebody: to be probed again, once


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a replica, written by its host. Readers treat one with an old heartbeat as gone."""

    name: str
    cluster: str
    url: str  # of the engine; "" for the engine within the service's process
    shares: str = ""  # URL at which its host gives weights to others; "": it gives none
    llguidance: str = ""  # the version of it that makes the engine's masks; "": nobody knows
    state: ReplicaState
    detail: str = ""
    serving: PolicyRef | None  # confirmed by the probe; None: takes no traffic
    loading: PolicyRef | None = None  # what its host loads and probes now, unless that failed before
    pinnable: tuple[PolicyRef, ...] = ()  # requests may ask for these by number
    holds_many: bool = False  # every version it holds is pinnable
    names: dict[PolicyRef, str] = {}  # of the versions that requests to the engine ask for by name
    figures: dict[PolicyRef, dict[str, float]] = {}  # of the versions that are verified on the host: `Engine.probe`
    refused: dict[PolicyRef, str] = {}  # what could not be verified, or not be switched to, and why
    probed: dict[PolicyRef, str] = {}  # what was doubted: "" where the probe found nothing wrong, else what
    heartbeat_at: datetime


class NamedVersion(NamedTuple):
    """A version that a request asks the engine for by name, and that answers this request to its end."""

    name: str
    version: PolicyRef


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One canary: a share of users, re-salted, on one version against another.

    In a small crowd its lane follows the learner: `canary` is what it serves now, `lane` what it served before."""

    experiment_id: str
    cluster: str
    canary: PolicyRef
    lane: tuple[PolicyRef, ...] = ()  # the oldest first
    followed_at: datetime | None = None  # when `canary` took the place of the one before
    control: PolicyRef
    share: float
    salt: str
    switch_s: float | None = None  # after so long users are assigned anew; None: they stay in their arms
    started_at: datetime
    ended_at: datetime | None = None
    verdict: Literal["promote", "rollback", "stopped"] | None = None
    certified: PolicyRef | None = None  # where it ended well: the version that the evidence speaks for
    why: str = ""
    figures: dict[str, float] = {}  # while it runs those of the newest look, as far as they are finite
    until: datetime | None = None  # when it is decided at the latest

    @property
    def versions(self) -> tuple[PolicyRef, ...]:
        """All that its lane served, the oldest first."""
        return (*self.lane, self.canary)

    @property
    def promoted(self) -> PolicyRef | None:
        """The version that it ended well for."""
        return (self.certified or self.canary) if self.verdict == "promote" else None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The arm that a user was given, before it is known whether an engine can serve it."""

    arm: Arm = "live"
    version: PolicyRef | None = None  # None: whatever is live, following swaps
    experiment_id: str | None = None
    propensity: float = 1.0


LIVE = Assignment()


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's standing orders.

    A pinned version serves and nothing else is released; a held one is not promoted, superseded or released
    automatically."""

    pinned: PolicyRef | None = None
    held: tuple[PolicyRef, ...] = ()


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An order to the release controller, and its result.

    `by`: the name or the fingerprint of the API key that gave it, or a guard."""

    order_id: int
    kind: OrderKind
    version: PolicyRef
    why: str
    by: str
    done_at: datetime | None = None
    error_code: str | None = None
    error: str | None = None
