"""A router's knowledge of the fleet at one moment. Immutable: threads hand it over whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.ids import PolicyRef
from core.operations.fleet import Lane, ReplicaState


@dataclass(frozen=True)
class Replica:
    """One engine whose host's heart beats."""

    name: str
    url: str
    lane: Lane
    state: ReplicaState
    serving: PolicyRef | None
    pinnable: frozenset[PolicyRef]
    avoid: frozenset[PolicyRef] = frozenset()
    llguidance: str = ""
    names: Mapping[PolicyRef, str] = field(default_factory=dict)  # of the versions that the engine serves by name

    @property
    def is_open(self) -> bool:
        """True when it takes new requests; also while it swaps, when they wait at the engine for some milliseconds."""
        return self.state in ("ready", "swapping") and self.serving is not None and self.serving not in self.avoid

    def answers(self, version: PolicyRef | None) -> bool:
        """Return whether it may answer a request for `version`; None: for the live version."""
        if not self.is_open:
            return False
        return self.lane == "live" if version is None else version in self.pinnable


@dataclass(frozen=True)
class FleetSnapshot:
    live: PolicyRef | None = None  # None before the first release
    replicas: tuple[Replica, ...] = ()  # by name
