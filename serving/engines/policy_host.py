"""What an engine's host does for one policy: makes the engine what the release controller wants, and says how it is."""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec

from core.errors import Conflict, EngineUnavailable, StoreUnavailable, Unavailable, WeightsError
from core.ids import BASE, PolicyName, PolicyRef
from core.operations.fleet import ReplicaState, ReplicaStatus, ReplicaTarget
from core.ports import Clock, Engine, Store, WeightsRef
from core.stages.stage import OK
from core.tracing import trace_version

_RETRY_S = 1.0  # of what failed because the engine was away
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hosted:
    """What the policies of one engine share."""

    engine: Engine
    store: Store
    cluster: str
    clock: Clock
    loader: Executor
    """Loads one version at a time, of whatever policy."""
    shares: str
    llguidance: str
    heart: Callable[[], AbstractContextManager[None]]
    """Beats for all policies while a thread waits for the engine."""
    wake: Callable[[], None]
    forgot: Callable[[], int]
    """How many versions that were erased the host has dropped from its caches."""


class PolicyHost:
    """Used by the host's thread."""

    def __init__(self, hosted: Hosted, policy: PolicyName) -> None:
        self.policy = policy
        self._hosted, self._engine, self._store, self._clock = hosted, hosted.engine, hosted.store, hosted.clock
        self._figures: dict[PolicyRef, dict[str, float]] = {}
        self._refused: dict[PolicyRef, str] = {}
        self._probed: dict[PolicyRef, str] = {}
        self._detail = ""
        self._phase: ReplicaState = "starting"
        self.is_draining = False
        self._said: ReplicaStatus | None = None
        self._missed = ""  # why what was last asked of the engine did not come about
        self.retry_at_s = float("-inf")
        self._loading: tuple[PolicyRef, Future[dict[str, float]]] | None = None

    @property
    def is_ready(self) -> bool:
        return self._phase == "ready"

    @property
    def state(self) -> str:
        """`ok` once the engine serves what is wanted; else what it waits for."""
        if self._phase == "ready":
            return OK
        detail = ": ".join(part for part in ("" if self.policy == BASE else self.policy, self._detail) if part)
        return f"{self._phase}: {detail}" if detail else self._phase

    def round(self, target: ReplicaTarget | None) -> bool:
        """Do one thing towards the target, if there is one to do; whether the status is news, `report` says."""
        if target is None:
            self._phase, self._detail = "starting", "no version is released yet"
            return False
        self._refused = {version: why for version, why in self._refused.items() if version in target.hold}
        self._probed = {version: found for version, found in self._probed.items() if version in target.doubt}
        return self._load_next(target) or self._switch(target) or self._unload_next(target) or self._probe_next(target)

    def _load_next(self, target: ReplicaTarget) -> bool:
        """Load the next wanted version; the one to serve comes first."""
        if self._loading is not None:
            return self._loaded()
        for version in dict.fromkeys((target.serve, *target.hold)):
            if version in self._refused or self._is_verified(version):
                continue
            if self._clock.monotonic() < self.retry_at_s:
                return False
            self._figures.pop(version, None)  # of before the engine's last start
            future = self._hosted.loader.submit(self._load, version)
            self._loading = version, future
            future.add_done_callback(lambda _: self._hosted.wake())
            return False
        return False

    def _is_verified(self, version: PolicyRef) -> bool:
        """Held by the engine since its last start, its digest compared, and probed."""
        return version in self._figures and version in self._engine.loaded()

    def _loaded(self) -> bool:
        """Take what the loader made, once it is done."""
        assert self._loading is not None
        version, future = self._loading
        if not future.done():
            return False
        self._loading = None
        try:
            self._figures[version] = future.result()
        except WeightsError as error:
            self._refuse(version, str(error))
        except (EngineUnavailable, StoreUnavailable, OSError) as error:  # OSError: blobs that cannot be reached
            self._away(error)
            return False
        return True

    def _load(self, version: PolicyRef) -> dict[str, float]:
        with self._store.look() as view:
            policy = view.policies.get(version)
        if policy is None:
            raise WeightsError(f"no version {version} is published")
        if version not in self._engine.loaded():
            began_at = self._clock.now()
            self._engine.load(
                WeightsRef(version=version, digest=policy.digest, path=policy.weights, parent=policy.parent)
            )
            trace_version(version, "load", began_at, self._clock.now(), self._engine.name)
        found = self._engine.loaded().get(version)
        if found is None:
            raise EngineUnavailable(f"version {version} was loaded, and the engine lost it")
        if found != policy.digest:
            raise WeightsError(f"version {version}: loaded digest {found}, published {policy.digest}")
        return dict(self._engine.probe(version))

    def _switch(self, target: ReplicaTarget) -> bool:
        serving = self._engine.serving(self.policy)
        if serving == target.serve:
            self._phase, self._detail, self._missed = "ready", "", ""
            return False
        if target.serve in self._refused or not self._is_verified(target.serve):
            why = self._refused.get(target.serve)
            self._phase = "ready" if serving is not None else "starting" if why is None else "failed"
            self._detail = why or (self._missed if serving is None else "")
            return False
        if self._clock.monotonic() < self.retry_at_s:
            return False
        self._phase = "swapping" if serving is not None else "starting"
        self.report(is_released=True)
        began_at = self._clock.now()
        try:
            with self._hosted.heart():
                self._engine.switch(target.serve)
            trace_version(target.serve, "swap", began_at, self._clock.now(), self._engine.name)
        except WeightsError as error:
            self._refuse(target.serve, str(error))
        except EngineUnavailable as error:
            self._away(error)
            return False
        return True

    def _unload_next(self, target: ReplicaTarget) -> bool:
        serving = self._engine.serving(self.policy)
        if serving is None:
            return False  # an engine that is unavailable may come back on any of them
        wanted = {target.serve, *target.hold, serving}
        if self._loading is not None:
            wanted.add(self._loading[0])  # the loader has not done with it
        for version in sorted(set(self._own(self._engine.loaded())) - wanted):
            try:
                self._engine.unload(version)
            except (
                Conflict,
                EngineUnavailable,
            ):  # a request is pinned to it, or it is unavailable: a later round tries again
                continue
            self._figures.pop(version, None)
            return True
        return False

    def _probe_next(self, target: ReplicaTarget) -> bool:
        """Probe a doubted version, once for each doubt; an engine that cannot answer is asked again."""
        if self._clock.monotonic() < self.retry_at_s:
            return False
        for version in target.doubt:
            if version in self._probed or version not in self._engine.pinnable() or self._said is None:
                continue
            try:
                with self._hosted.heart():
                    self._probed[version] = self._engine.what_is_wrong(version) or ""
            except (EngineUnavailable, WeightsError) as error:
                logger.warning("host %s: version %s could not be probed: %s", self._engine.name, version, error)
                self.retry_at_s = self._clock.monotonic() + _RETRY_S
                return False
            return True
        return False

    def _refuse(self, version: PolicyRef, why: str) -> None:
        logger.warning("host %s refuses version %s: %s", self._engine.name, version, why)
        self._refused[version] = why

    def _away(self, error: Unavailable | OSError) -> None:
        self._phase, self._detail = "starting", str(error)
        self._missed = str(error)
        self.retry_at_s = self._clock.monotonic() + _RETRY_S

    # ------------------------------------------------------------------------------------------ what is said

    def _own(self, versions: Iterable[PolicyRef]) -> list[PolicyRef]:
        return [version for version in versions if version.policy == self.policy]

    def said_again(self) -> None:
        """Let the next report be stored, though nothing has changed: what was stored is gone."""
        self._said = None

    def report(self, *, is_released: bool) -> bool:
        """Store the status when something has changed in it, and return whether that was done."""
        serving = self._engine.serving(self.policy)
        held = set(self._engine.loaded())
        status = ReplicaStatus(
            name=self._engine.name,
            cluster=self._hosted.cluster,
            policy=self.policy,
            url=self._engine.url,
            shares=self._hosted.shares,
            llguidance=self._hosted.llguidance,
            state="draining" if self.is_draining else self._phase,
            detail=self._detail,
            serving=serving if is_released else None,
            pinnable=tuple(sorted(self._own(self._engine.pinnable()))),
            holds_many=self._engine.holds_many,
            figures={version: values for version, values in self._figures.items() if version in held},
            refused=dict(self._refused),
            forgot=self._hosted.forgot(),
            probed=dict(self._probed),
            heartbeat_at=self._clock.now(),
        )
        said = self._said
        if said is not None and said == msgspec.structs.replace(status, heartbeat_at=said.heartbeat_at):
            return False
        with self._store.work() as work:
            work.fleet.put_status(status)
        self._said = status
        return True
