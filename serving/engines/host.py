"""The host of one engine: makes it what the release controller wants of it, and says how it is.

    target (store) ──► load what is to be held ──► switch to what is to serve ──► unload the rest ──► status (store)

Level-triggered: each round compares what is with what is wanted, so that a host that was killed at any point, or an
engine that was started again behind its back, is put right by the next round. One thing is done in a round for each
policy that the engine serves, and said. Loading and switching take as long as the weights are large: loading has a
thread of its own, and the heart goes on beating through both.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from core.ids import BASE, PolicyName
from core.operations.fleet import ReplicaTarget
from core.ports import Clock, Engine, Store
from core.records.withdrawals import Withdrawals
from core.stages.renewing import renewing
from core.stages.stage import OK, Stage
from serving.engines.policy_host import Hosted, PolicyHost

_WOKEN_S = 1.0  # how often it looks at its engine, where the store tells of targets
logger = logging.getLogger(__name__)


class EngineHost(Stage):
    """Woken when there is a new target."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        cluster: str,
        clock: Clock,
        *,
        policies: Sequence[PolicyName] = (BASE,),
        shares: str = "",
        llguidance: str = "",
        withdrawals: Withdrawals | None = None,
        heartbeat_s: float = 1.0,
        poll_s: float = 0.1,
    ) -> None:
        """Host the engine's `policies`; `withdrawals` drops versions that were erased from the caches of this host.

        `shares`: the URL at which this host gives weights to others; `llguidance`: the version beside the engine."""
        super().__init__()
        self._engine, self._store, self._cluster, self._clock = engine, store, cluster, clock
        store.wake(self.woken)
        self._heartbeat_s, self._poll_s = heartbeat_s, poll_s
        self.on_change: Callable[[], None] | None = None  # called when a status has changed, from its own thread
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._withdrawals, self._forgot, self._look_at_s = withdrawals, 0, float("-inf")
        hosted = Hosted(
            engine, store, cluster, clock, self._loader, shares, llguidance, self._heart, self.wake, self._count
        )
        self._hosts = [PolicyHost(hosted, policy) for policy in policies]
        self._beat_at_s = float("-inf")

    @property
    def retry_at_s(self) -> float:
        """When it tries again what failed because the engine was away, on the clock's monotonic time."""
        return max(host.retry_at_s for host in self._hosts)

    @property
    def state(self) -> str:
        """`ok` once the engine serves what is wanted of all policies; else what it waits for."""
        return next((host.state for host in self._hosts if host.state != OK), OK)

    def tick(self) -> float:
        """Do one round; while the store is away, what serves goes on serving."""
        self._drop_erased()
        targets = self._targets()
        is_done = is_news = False
        for host in self._hosts:
            target = targets.get(host.policy)
            is_done = host.round(target) or is_done
            is_news = host.report(is_released=target is not None) or is_news
        if self._clock.monotonic() - self._beat_at_s >= self._heartbeat_s:
            self._beat()
        if is_news and self.on_change is not None:
            self.on_change()
        if is_done:
            return 0.0
        is_settled = all(host.is_ready for host in self._hosts)
        return min(self._heartbeat_s, _WOKEN_S) if self._store.wakes and is_settled else self._poll_s

    def drain(self) -> None:
        """Take no new requests, once the routers notice; finish the running ones."""
        for host in self._hosts:
            host.is_draining = True

    def close(self) -> None:
        """Report that the replica is gone on purpose, so that nobody waits for its heartbeat."""
        self._loader.shutdown()
        with self._store.work() as work:
            work.fleet.forget(self._engine.name)

    def _targets(self) -> dict[PolicyName, ReplicaTarget]:
        """Return the controller's targets; without one, the live version: a host starts also without a controller."""
        name = self._engine.name
        with self._store.look() as view:
            targets = view.fleet.targets_of(name)
            missing = [host.policy for host in self._hosts if host.policy not in targets]
            lives = [view.releases.live(self._cluster, policy) for policy in missing]
        alone = {live.policy: ReplicaTarget(name=name, lane="live", serve=live, hold=(live,)) for live in lives if live}
        return targets | alone

    def _drop_erased(self) -> None:
        """Drop versions that were erased, before anything is loaded, and as often as the heart beats."""
        if self._withdrawals is not None and self._clock.monotonic() - self._look_at_s >= self._heartbeat_s:
            self._forgot = self._withdrawals.look()
            self._look_at_s = self._clock.monotonic()

    def _count(self) -> int:
        return self._forgot

    # ------------------------------------------------------------------------------------------ its heart

    def _heart(self) -> AbstractContextManager[None]:
        """Beats while this thread waits for the engine: a switch takes as long as the weights are large, too."""
        return renewing(f"{self._engine.name}-heart", self._heartbeat_s, self._beat)

    def _beat(self) -> None:
        with self._store.work() as work:
            known = work.fleet.beat(self._engine.name, self._clock.now())
        self._beat_at_s = self._clock.monotonic()
        if known < len(self._hosts):  # somebody forgot this replica
            for host in self._hosts:
                host.said_again()
