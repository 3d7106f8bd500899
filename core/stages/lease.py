"""The right to run a stage that only one process anywhere may run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import Fenced, StoreUnavailable
from core.ports import Clock, Store
from core.stages.renewing import renewing

_RENEWALS = 3  # in the life of a lease
logger = logging.getLogger(__name__)


class Lease:
    """The lease of one stage, for one process.

    A lease that was lost stays lost: what the stage knows may be old then, and another process starts from what is
    written."""

    def __init__(self, name: str, holder: str, store: Store, clock: Clock, ttl_s: float) -> None:
        self.name, self._holder, self._ttl_s = name, holder, ttl_s
        self._store, self._clock = store, clock
        self._epoch: int | None = None
        self._lost: str | None = None
        self.ask_every_s = ttl_s / _RENEWALS

    def take(self) -> bool:
        """Try to acquire the lease, and return whether it is ours now. Raises StoreUnavailable."""
        with self._store.work() as work:
            self._epoch = work.leases.acquire(self.name, self._holder, self._clock.now(), self._ttl_s)
        if self._epoch is not None:
            self._lost = None
            logger.info("%s: the lease is ours, epoch %d", self.name, self._epoch)
        return self._epoch is not None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease for as long as this lasts, and give it back in the end."""
        try:
            with renewing(f"{self.name}-lease", self.ask_every_s, self._renew):
                yield
        finally:
            self._give_back()

    def check(self) -> None:
        """Raise Fenced if the lease was lost."""
        if self._lost is not None:
            raise Fenced(self._lost)

    def _renew(self) -> None:
        assert self._epoch is not None
        try:
            with self._store.work() as work:
                work.leases.fence(self.name, self._epoch, self._clock.now(), self._ttl_s)
        except Fenced as error:
            self._lost = str(error)
            raise

    def _give_back(self) -> None:
        if self._epoch is None or self._lost is not None:
            return
        try:
            with self._store.work() as work:
                work.leases.give_back(self.name, self._epoch)
        except StoreUnavailable as error:  # then it runs out
            logger.warning("the lease %s was not given back: %s", self.name, error)
        self._epoch = None
