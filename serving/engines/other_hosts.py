"""Finds the other hosts of the fleet from which this one can fetch weights."""

import logging
from datetime import timedelta

from core.errors import StoreUnavailable
from core.ports import Clock, Store
from serving.weights.sharing.peers import Peer

logger = logging.getLogger(__name__)


class OtherHosts:
    """Finds the hosts that give weights to the one called `name`; one without a heartbeat for so long is gone."""

    def __init__(self, name: str, store: Store, cluster: str, clock: Clock, heartbeat_timeout_s: float) -> None:
        self._name, self._store, self._cluster, self._clock = name, store, cluster, clock
        self._timeout = timedelta(seconds=heartbeat_timeout_s)

    def __call__(self) -> list[Peer]:
        """Return the hosts; none while nobody can be asked for them."""
        try:
            with self._store.look() as view:
                statuses = view.fleet.statuses(self._cluster)
        except StoreUnavailable as error:
            logger.info("weights are read from the blobs: %s", error)
            return []
        oldest = self._clock.now() - self._timeout
        giving = (status for status in statuses if status.shares and status.heartbeat_at >= oldest)
        return [Peer(status.name, status.shares) for status in giving if status.name != self._name]
