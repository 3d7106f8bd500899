"""Implements core.ports.Traffic from the store: which experiment runs, and who is in it."""

import threading
from dataclasses import dataclass

from core.errors import StoreUnavailable
from core.ids import ANCHOR
from core.operations.fleet import CLUSTER, LIVE, Assignment
from core.ports import Store
from core.settings import ReleaseSettings
from serving.releases.canaries.assignment import Shares, assign

_POLL_S = 0.1


@dataclass(frozen=True)
class _Rules:
    shares: Shares
    arms: dict[str, Assignment]  # all but live, without their propensity


class StoreTraffic:
    """A stage that caches the running experiment from the store; `assign` uses only the cache.

    The end of an experiment is noticed within a tenth of a second; the routers learn sooner which engines to avoid."""

    def __init__(self, store: Store, settings: ReleaseSettings) -> None:
        self._store, self._settings = store, settings
        self._rules: _Rules | None = None
        self._wakened = threading.Event()
        self._read()

    def assign(self, unit: str) -> Assignment:
        rules = self._rules
        if rules is None:
            return LIVE
        arm, propensity = assign(rules.shares, unit)
        chosen = rules.arms.get(arm, LIVE)
        return Assignment(arm=arm, version=chosen.version, experiment_id=chosen.experiment_id, propensity=propensity)

    def step(self, timeout_s: float) -> int:
        self._wakened.wait(min(timeout_s, _POLL_S))
        self._wakened.clear()
        try:
            self._read()
        except StoreUnavailable:
            return 0  # what was so is so, as far as anybody knows
        return 0

    def wake(self) -> None:
        self._wakened.set()

    def close(self) -> None:
        pass

    def _read(self) -> None:
        with self._store.look() as view:
            experiment = view.experiments.running(CLUSTER)
            live = view.releases.live(CLUSTER)
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
            arms,
        )
