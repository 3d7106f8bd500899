"""An honest engine in memory, whose host may end at any call."""

from collections.abc import Mapping
from threading import Event

from mortal import Fuse

from core.errors import Conflict, EngineUnavailable, WeightsError
from core.ids import PolicyRef
from core.model.adapters import digest_of_version
from core.ports import Opened, Weights, WeightsRef

FINE = {"finite": 1.0, "kl_to_live": 0.01, "entropy": 1.5}


class MemoryEngine:
    """An implementation of core.ports.Engine that holds the digests it really read, for one served version or many.

    An engine of many serves the anchor from its start, as the embedded one does; the other serves nothing before its
    first switch."""

    def __init__(self, name: str, weights: Weights, anchor: WeightsRef, *, many: bool) -> None:
        self.name, self.url, self.holds_many = name, "" if many else f"http://{name}", many
        self.fuse = Fuse()
        self._weights = weights
        self._digests = {anchor.version: _digest_of(weights.open(anchor))} if many else {}
        self._live: PolicyRef | None = anchor.version if many else None
        self.loads: list[int] = []
        self.switches: list[int] = []
        self.doubts: list[int] = []
        self.figures: dict[int, Mapping[str, float]] = {}
        self.pinned: set[int] = set()
        self.misread: set[int] = set()
        self.unfit: set[int] = set()  # cannot be loaded
        self.unservable: set[int] = set()  # can be loaded, and not be switched to
        self.away = False
        self.may_load = Event()
        self.may_load.set()

    def serving(self) -> PolicyRef | None:
        return None if self.away else self._live

    def pinnable(self) -> frozenset[PolicyRef]:
        return frozenset(self._digests) if self.holds_many else frozenset({self._live} - {None})  # type: ignore[arg-type]

    @property
    def held(self) -> set[int]:
        return {version.version for version in self._digests}

    @property
    def serves(self) -> int | None:
        serving = self.serving()
        return None if serving is None else serving.version

    def names(self) -> Mapping[PolicyRef, str]:
        return {}

    def loaded(self) -> Mapping[PolicyRef, str]:
        return dict(self._digests)

    def load(self, ref: WeightsRef) -> None:
        self.may_load.wait(60)
        self._call()
        if ref.version.version in self.unfit:
            raise WeightsError(f"{self.name} cannot load version {ref.version}")
        digest = _digest_of(self._weights.open(ref))
        self._digests[ref.version] = "other" if ref.version.version in self.misread else digest
        self.loads.append(ref.version.version)

    def probe(self, version: PolicyRef) -> Mapping[str, float]:
        self._call()
        assert version in self._digests
        return self.figures.get(version.version, FINE)

    def what_is_wrong(self, version: PolicyRef) -> str | None:
        self._call()
        self.doubts.append(version.version)
        return None if self.probe(version)["finite"] == 1 else "its probe is not finite"

    def switch(self, version: PolicyRef) -> None:
        self._call()
        assert version in self._digests
        if version.version in self.unservable:
            raise WeightsError(f"{self.name} cannot serve version {version}")
        self._live = version
        self.switches.append(version.version)

    def unload(self, version: PolicyRef) -> None:
        self._call()
        if version == self._live or version.version in self.pinned:
            raise Conflict(f"version {version} is in use")
        del self._digests[version]

    def restart(self) -> None:
        """Restart as a server that was killed: nothing is loaded."""
        self._live = None
        self._digests.clear()

    def _call(self) -> None:
        self.fuse()
        if self.away:
            raise EngineUnavailable(f"{self.name} is away")


def _digest_of(opened: Opened) -> str:
    return digest_of_version(opened.shards, opened.adapter)
