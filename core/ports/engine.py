"""An engine, as its host steers it."""

from collections.abc import Mapping
from typing import Protocol

from core.ids import PolicyRef
from core.ports.weights import WeightsRef


class Engine(Protocol):
    """The host of one engine: verifies versions, and makes the engine serve one. Blocks: keep off the event loop."""

    @property
    def name(self) -> str:
        """The replica's name, as stamped on the turns that it served."""
        ...

    @property
    def url(self) -> str:
        """The engine's address; "" within this process."""
        ...

    @property
    def holds_many(self) -> bool:
        """True when requests may be pinned to any loaded version; else only to the one that serves."""
        ...

    def serving(self) -> PolicyRef | None:
        """Return the confirmed version that serves requests without a pin.

        None while the engine is unreachable, hangs, was restarted, or serves an unconfirmed version."""
        ...

    def pinnable(self) -> frozenset[PolicyRef]:
        """Versions that requests may ask for by number now."""
        ...

    def names(self) -> Mapping[PolicyRef, str]:
        """Return the names of the versions that requests may ask for by name.

        Such an answer is of the named version to its end, whatever serves meanwhile."""
        ...

    def loaded(self) -> Mapping[PolicyRef, str]:
        """Versions verified on this host and ready to be switched to, with the digest of what is held."""
        ...

    def load(self, ref: WeightsRef) -> None:
        """Fetch, verify, and hold beside what serves. Raises WeightsError; serving goes on untouched."""
        ...

    def probe(self, version: PolicyRef) -> Mapping[str, float]:
        """Figures of a loaded version on the probe set: `finite` (0 or 1), `kl_to_live`, `entropy`."""
        ...

    def what_is_wrong(self, version: PolicyRef) -> str | None:
        """Check a loaded version by computing its probe on the engine now; return the fault, or None.

        None also when the engine does not serve it. Raises EngineUnavailable."""
        ...

    def switch(self, version: PolicyRef) -> None:
        """Serve `version` from the next token on, without dropping any request.

        Running ones continue under it, except that those that named a version keep that one.

        Returns when the served version is confirmed. Raises WeightsError when the version cannot serve: the engine
        then serves the last good one again, or `serving` is None. Raises EngineUnavailable when the engine is
        unreachable."""
        ...

    def unload(self, version: PolicyRef) -> None:
        """Unload a version. Raises Conflict while it serves or a request is pinned to it."""
        ...
