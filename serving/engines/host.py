"""The host of one engine: brings it to the versions that the release controller wants, and reports its state.

    target (store) ──► load what is to be held ──► switch to what is to serve ──► unload the rest ──► status (store)

Level-triggered: each round compares the state with what is wanted. So the next round puts everything right after the
host was killed at any point, or the engine was restarted without the host knowing. A round does one thing and reports
it. Loading and switching take long for large weights: loading has a thread of its own, and heartbeats go on during
both.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import msgspec

from core import telemetry
from core.errors import Conflict, EngineUnavailable, StoreUnavailable, Unavailable, WeightsError
from core.ids import PolicyRef
from core.operations.fleet import ReplicaState, ReplicaStatus, ReplicaTarget
from core.ports import Clock, Engine, Store, WeightsRef
from core.stages.renewing import renewing
from core.stages.rounds import Rounds
from core.stages.stage import OK, Stage
from core.tracing import trace_version

_WOKEN_S = 1.0  # how often it looks at its engine, where the store tells of targets
_SPARE = 2  # the newest that nobody wants: kept while the engine is away, which may come back on one of them
_RETRY_S = 1.0  # of what failed because the engine was away
logger = logging.getLogger(__name__)


def bring_up(host: "EngineHost") -> None:
    """Do rounds until the engine serves what is wanted, or will not.

    One that serves the first version from its start is ready before that is so."""
    rounds = Rounds("host", host)
    while rounds.step(0.1) or host.state.startswith("starting") or host.is_behind:
        pass


class EngineHost(Stage):
    """Woken when there is a new target."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        cluster: str,
        clock: Clock,
        *,
        shares: str = "",
        llguidance: str = "",
        heartbeat_s: float = 1.0,
        poll_s: float = 0.1,
    ) -> None:
        """`shares`: the URL at which this host gives weights to others; `llguidance`: the version beside the engine."""
        super().__init__()
        self._shares, self._llguidance = shares, llguidance
        self._engine, self._store, self._cluster, self._clock = engine, store, cluster, clock
        store.wake(self.woken)
        self._heartbeat_s, self._poll_s = heartbeat_s, poll_s
        self.on_change: Callable[[], None] | None = None  # called when the status has changed, from its own thread
        self._figures: dict[PolicyRef, dict[str, float]] = {}
        self._refused: dict[PolicyRef, str] = {}
        self._probed: dict[PolicyRef, str] = {}
        self._detail = ""
        self._phase: ReplicaState = "starting"
        self._wanted: PolicyRef | None = None
        self._draining = False
        self._said: ReplicaStatus | None = None
        self._said_s = float("-inf")
        self._missed = ""  # why what was last asked of the engine did not come about
        self._not_loaded = ""  # why what was last to be loaded was not
        self._retry_at_s = float("-inf")
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._loading: tuple[PolicyRef, Future[dict[str, float]]] | None = None

    @property
    def state(self) -> str:
        """`ok` once the engine serves what is wanted; else what it waits for."""
        return OK if self._phase == "ready" else f"{self._phase}: {self._detail}" if self._detail else self._phase

    @property
    def is_behind(self) -> bool:
        """Whether the engine has yet to serve what is wanted, which is being loaded or switched to."""
        wanted = self._wanted
        will_not = self._not_loaded or wanted is None or wanted in self._refused
        return not will_not and wanted != self._engine.serving()

    def tick(self) -> float:
        """Do one round; while the store is away, what serves goes on serving."""
        if self._round():
            return 0.0
        return min(self._heartbeat_s, _WOKEN_S) if self._store.wakes and self._phase == "ready" else self._poll_s

    def drain(self) -> None:
        """Take no new requests, once the routers notice; finish the running ones."""
        self._draining = True

    def close(self) -> None:
        """Report that the replica is gone on purpose, so that nobody waits for its heartbeat."""
        self._loader.shutdown()
        with self._store.work() as work:
            work.fleet.forget(self._engine.name)

    # ------------------------------------------------------------------------------------------ a round

    def _round(self) -> int:
        target = self._target()
        if target is None:
            self._phase, self._detail = "starting", "no version is released yet"
            self._report(None)
            return 0
        self._wanted = target.serve
        self._refused = {version: why for version, why in self._refused.items() if version in target.hold}
        self._probed = {version: found for version, found in self._probed.items() if version in target.doubt}
        done = self._load_next(target) or self._switch(target) or self._unload_next(target) or self._probe_next(target)
        self._report(target)
        return int(done)

    def _target(self) -> ReplicaTarget | None:
        """Return the controller's target; without one, the live version: a host starts also without a controller."""
        with self._store.look() as view:
            target = view.fleet.target(self._engine.name)
            live = view.releases.live(self._cluster) if target is None else None
        if target is not None or live is None:
            return target
        return ReplicaTarget(name=self._engine.name, lane="live", serve=live, hold=(live,))

    def _load_next(self, target: ReplicaTarget) -> bool:
        """Load the next wanted version; the one to serve comes first."""
        if self._loading is not None:
            return self._loaded()
        for version in dict.fromkeys((target.serve, *target.hold)):
            if version in self._refused or self._is_verified(version):
                continue
            if self._clock.monotonic() < self._retry_at_s:
                return False
            self._figures.pop(version, None)  # of before the engine's last start
            future = self._loader.submit(self._load, version)
            self._loading = version, future
            future.add_done_callback(lambda _: self.wake())
            return False
        self._not_loaded = ""
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
        except (EngineUnavailable, StoreUnavailable, OSError) as error:  # OSError: no blobs within reach, or no room
            if str(error) != self._not_loaded:
                logger.warning("host %s: version %s could not be loaded: %s", self._engine.name, version, error)
            self._away(error)
            self._not_loaded = str(error)
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
            raise EngineUnavailable(f"version {version} was loaded, but the engine no longer has it")
        if found != policy.digest:
            raise WeightsError(f"version {version}: loaded digest {found}, published {policy.digest}")
        began_s = self._clock.monotonic()
        try:
            return dict(self._engine.probe(version))
        finally:
            telemetry.PROBE_SECONDS.inc(self._clock.monotonic() - began_s)

    def _switch(self, target: ReplicaTarget) -> bool:
        serving = self._engine.serving()
        if serving == target.serve:
            self._phase, self._detail, self._missed = "ready", self._not_loaded, ""
            return False
        if target.serve in self._refused or not self._is_verified(target.serve):
            why = self._refused.get(target.serve)
            self._phase = "ready" if serving is not None else "starting" if why is None else "failed"
            self._detail = why or (self._missed if serving is None else self._not_loaded)
            return False
        if self._clock.monotonic() < self._retry_at_s:
            return False
        self._phase = "swapping" if serving is not None else "starting"
        self._report(target)
        try:
            with self._heart():
                began_at = self._clock.now()
                self._engine.switch(target.serve)
                trace_version(target.serve, "swap", began_at, self._clock.now(), self._engine.name)
        except WeightsError as error:
            self._refuse(target.serve, str(error))
        except (EngineUnavailable, OSError) as error:
            self._away(error)
            return False
        return True

    def _unload_next(self, target: ReplicaTarget) -> bool:
        serving = self._engine.serving()
        wanted = {target.serve, *target.hold, serving}
        if self._loading is not None:
            wanted.add(self._loading[0])  # the loader has not done with it
        unwanted = sorted(set(self._engine.loaded()) - wanted)
        for version in unwanted[:-_SPARE] if serving is None else unwanted:
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
        if self._clock.monotonic() < self._retry_at_s:
            return False
        for version in target.doubt:
            if version in self._probed or version not in self._engine.pinnable() or self._said is None:
                continue
            try:
                with self._heart():
                    self._probed[version] = self._engine.what_is_wrong(version) or ""
            except (EngineUnavailable, WeightsError, OSError) as error:
                logger.warning("host %s: version %s could not be probed: %s", self._engine.name, version, error)
                self._retry_at_s = self._clock.monotonic() + _RETRY_S
                return False
            return True
        return False

    def _refuse(self, version: PolicyRef, why: str) -> None:
        logger.warning("host %s refuses version %s: %s", self._engine.name, version, why)
        self._refused[version] = why

    def _away(self, error: Unavailable | OSError) -> None:
        self._phase, self._detail = "starting", str(error)
        self._missed = str(error)
        self._retry_at_s = self._clock.monotonic() + _RETRY_S

    # ------------------------------------------------------------------------------------------ what is said

    def _heart(self) -> AbstractContextManager[None]:
        """Beats while this thread waits for the engine: a switch takes as long as the weights are large, too."""
        said = self._said
        assert said is not None
        return renewing(f"{self._engine.name}-heart", self._heartbeat_s, lambda: self._beat(said))

    def _beat(self, said: ReplicaStatus) -> None:
        with self._store.work() as work:
            work.fleet.put_status(msgspec.structs.replace(said, heartbeat_at=self._clock.now()), is_news=False)

    def _report(self, target: ReplicaTarget | None) -> None:
        """Report the state when something changed, and once in a heartbeat."""
        serving = self._engine.serving()
        held = set(self._engine.loaded())
        status = ReplicaStatus(
            name=self._engine.name,
            cluster=self._cluster,
            url=self._engine.url,
            shares=self._shares,
            llguidance=self._llguidance,
            state="draining" if self._draining else self._phase,
            detail=self._detail,
            serving=None if target is None else serving,
            loading=None if self._loading is None or self._not_loaded else self._loading[0],
            pinnable=tuple(sorted(self._engine.pinnable())),
            holds_many=self._engine.holds_many,
            names=dict(self._engine.names()),
            figures={version: values for version, values in self._figures.items() if version in held},
            refused=dict(self._refused),
            probed=dict(self._probed),
            heartbeat_at=self._clock.now(),
        )
        now_s = self._clock.monotonic()
        same = self._said is not None and self._said == msgspec.structs.replace(  # who loads is told by the heart
            status, heartbeat_at=self._said.heartbeat_at, loading=self._said.loading
        )
        if same and now_s - self._said_s < self._heartbeat_s:
            return
        with self._store.work() as work:
            work.fleet.put_status(status, is_news=not same)
        self._said, self._said_s = status, now_s
        if not same and self.on_change is not None:
            self.on_change()
