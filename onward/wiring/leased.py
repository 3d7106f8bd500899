"""A stage of which there may be one anywhere: its process has the lease, or stands by for it."""

import logging
import threading
from collections.abc import Callable

from core.errors import Fenced, StoreUnavailable
from core.ports import Clock, Store
from core.records.handling import failure_of
from onward.wiring.foundation import Stage

_RENEWALS = 3  # in the life of a lease
logger = logging.getLogger(__name__)


class Leased:
    """A stage. What it makes is closed before the lease is given back. A lease that was lost ends it with Fenced: what
    the stage knows may be old, and a new process starts from what is written."""

    def __init__(
        self, name: str, holder: str, store: Store, clock: Clock, ttl_s: float, make: Callable[[], Stage]
    ) -> None:
        self._name, self._holder, self._ttl_s = name, holder, ttl_s
        self._store, self._clock, self._make = store, clock, make
        self._stage: Stage | None = None
        self._epoch: int | None = None
        self._closing = threading.Event()
        self._lost: str | None = None
        self._renewing = threading.Thread(target=self._renew, name=f"{name}-lease", daemon=True)

    @property
    def state(self) -> str:
        """`ok`, also of one that stands by."""
        return self._lost or str(getattr(self._stage, "state", "ok"))

    def step(self, timeout_s: float) -> int:
        """Raises Fenced when another has the lease, and what the stage raises."""
        if self._lost is not None:
            raise Fenced(self._lost)
        if self._stage is None and not self._take(timeout_s):
            return 0
        assert self._stage is not None
        return self._stage.step(timeout_s)

    def _take(self, timeout_s: float) -> bool:
        try:
            with self._store.work() as work:
                epoch = work.leases.acquire(self._name, self._holder, self._clock.now(), self._ttl_s)
        except StoreUnavailable as error:
            logger.warning("%s: %s", self._name, error)
            epoch = None
        if epoch is None:
            self._closing.wait(max(timeout_s, self._ttl_s / _RENEWALS))
            return False
        logger.info("%s: the lease is ours, epoch %d", self._name, epoch)
        self._epoch = epoch
        self._renewing.start()
        self._stage = self._make()
        return True

    def _renew(self) -> None:
        """In a thread of its own: a step may take longer than a lease lives."""
        while not self._closing.wait(self._ttl_s / _RENEWALS):
            failure = failure_of(self._fence)
            if isinstance(failure, StoreUnavailable):  # nobody else can take it meanwhile; nothing can be published
                logger.warning("the lease %s was not renewed: %s", self._name, failure)
            elif failure is not None:
                self._lost = str(failure)
                return

    def _fence(self) -> None:
        assert self._epoch is not None
        with self._store.work() as work:
            work.leases.fence(self._name, self._epoch, self._clock.now(), self._ttl_s)

    def close(self) -> None:
        self._closing.set()
        if self._stage is not None:
            self._stage.close()
        if self._renewing.is_alive():
            self._renewing.join()
        if self._epoch is not None and self._lost is None:
            try:
                with self._store.work() as work:
                    work.leases.give_back(self._name, self._epoch)
            except StoreUnavailable as error:  # then it runs out
                logger.warning("the lease %s was not given back: %s", self._name, error)
