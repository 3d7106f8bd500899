"""An engine, as its host steers it."""

from collections.abc import Mapping
from typing import Protocol

from core.ids import Version
from core.ports.weights import WeightsRef


class Engine(Protocol):
    """The host of one engine: verifies versions, and makes the engine serve one. Blocks: keep off the event loop."""

    @property
    def name(self) -> str:
        """Of the replica, as stamped on the turns it served."""
        ...

    @property
    def url(self) -> str:
        """Where the engine answers; "" within this process."""
        ...

    @property
    def holds_many(self) -> bool:
        """Whether requests may be pinned to every loaded version; else only to the one that serves."""
        ...

    def serving(self) -> Version | None:
        """What unpinned requests are served by, confirmed; None while the engine is away, hangs, was started again,
        or serves what nobody confirmed."""
        ...

    def pinnable(self) -> frozenset[Version]:
        """Versions that requests may ask for by number now."""
        ...

    def loaded(self) -> Mapping[Version, str]:
        """Versions verified on this host and ready to be switched to, with the digest of what is held."""
        ...

    def load(self, ref: WeightsRef) -> None:
        """Fetch, verify, and hold beside what serves. Raises WeightsError; serving goes on untouched."""
        ...

    def probe(self, version: Version) -> Mapping[str, float]:
        """Figures of a loaded version on the probe set: `finite` (0 or 1), `kl_to_live`, `entropy`."""
        ...

    def what_is_wrong(self, version: Version) -> str | None:
        """Of a version that requests may ask for: by its probe, computed by the engine now; None where nothing is, or
        the engine does not serve it. Raises EngineUnavailable."""
        ...

    def switch(self, version: Version) -> None:
        """Serve `version` from the next token on; running requests continue under it. Drops nobody. Returns when what
        serves is confirmed. Raises WeightsError when the version cannot serve: the engine then serves the last good
        one again, or `serving` is None. Raises EngineUnavailable when the engine is away."""
        ...

    def unload(self, version: Version) -> None:
        """Raises Conflict while it serves or a request is pinned to it."""
        ...
