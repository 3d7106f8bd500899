"""Implements core.ports.Traffic from the store: which experiment runs, and who is in it."""

from dataclasses import dataclass, replace

from core.clock import SystemClock
from core.ids import ANCHOR
from core.operations.fleet import LIVE, Assignment
from core.ports import Clock, Store
from core.settings import ReleaseSettings
from core.stages.stage import Stage
from serving.releases.canaries.assignment import Shares, assign, salt_at

_POLL_S = 0.1
_WOKEN_S = 5.0  # where the store tells of changes


@dataclass(frozen=True)
class _Rules:
    shares: Shares
    switch_s: float | None
    arms: dict[str, Assignment]  # all but live, without their propensity


class StoreTraffic(Stage):
    """A stage that caches the running experiment from the store; `assign` uses only the cache.

    The end of an experiment is noticed within a tenth of a second; the routers learn sooner which engines to avoid."""

    def __init__(self, store: Store, cluster: str, settings: ReleaseSettings, clock: Clock | None = None) -> None:
        super().__init__()
        self._store, self._cluster, self._settings = store, cluster, settings
        self._clock = clock or SystemClock()
        self._rules: _Rules | None = None
        store.wake(self.woken)
        self._read()

    def assign(self, unit: str) -> Assignment:
        rules = self._rules
        if rules is None:
            return LIVE
        salt = salt_at(rules.shares.canary_salt, self._clock.now().timestamp(), rules.switch_s)
        arm, propensity = assign(replace(rules.shares, canary_salt=salt), unit)
        chosen = rules.arms.get(arm, LIVE)
        return Assignment(arm=arm, version=chosen.version, experiment_id=chosen.experiment_id, propensity=propensity)

    def tick(self) -> float:
        self._read()
        return _WOKEN_S if self._store.wakes else _POLL_S

    def _read(self) -> None:
        with self._store.look() as view:
            experiment = view.experiments.running(self._cluster)
            live = view.releases.live(self._cluster)
        holdback = 0.0 if live in (None, ANCHOR) else self._settings.holdback.share
        if experiment is None and not holdback:
            self._rules = None
            return
        number = None if experiment is None else experiment.experiment_id
        arms = {"holdback": Assignment(arm="holdback", version=ANCHOR, experiment_id=number)}
        arms["live"] = Assignment(experiment_id=number)
        if experiment is not None:
            arms["canary"] = Assignment(arm="canary", version=experiment.canary, experiment_id=number)
        self._rules = _Rules(
            Shares(
                canary=0.0 if experiment is None else experiment.share,
                holdback=holdback,
                canary_salt="" if experiment is None else experiment.salt,
                holdback_salt=self._settings.holdback.salt,
            ),
            None if experiment is None else experiment.switch_s,
            arms,
        )
