"""The eraser: the stage that obeys orders to erase, place by place, and signs what it did."""

import logging
import time
from collections.abc import Sequence

from core import telemetry
from core.errors import Fenced, Unavailable
from core.ids import SessionId, UserHash
from core.operations.erasures import FIRST, Erasure
from core.ports import Clock, Store
from core.records.erasing import NotYet, Place
from core.stages.stage import OK, Stage, until
from ingest.erasure.statement import Signer, statement_of

_LOOK_S = 1.0
_LOOK_BACK_S = 600.0
_PART = 200  # orders looked at in one view
logger = logging.getLogger(__name__)


class Eraser(Stage):
    """Obeys orders, the oldest first; killed at any moment it goes on with the place at which it was."""

    def __init__(
        self, store: Store, clock: Clock, places: Sequence[Place], signer: Signer, of_policy: Sequence[Place] = ()
    ) -> None:
        """`places` are done in their order; `of_policy`: those of an order that erases an organisation."""
        super().__init__()
        self._store, self._clock = store, clock
        self._places, self._of_policy, self._signer = places, of_policy, signer
        self._next_s = 0.0
        self._look_back_s = 0.0
        self._fault = OK

    @property
    def state(self) -> str:
        return self._fault

    def tick(self) -> float:
        """Do the next place of each order."""
        if time.monotonic() < self._next_s:
            return until(self._next_s)
        did = self.go_on()
        self._fault = OK
        if did:
            return 0.0
        self._next_s = time.monotonic() + _LOOK_S
        return until(self._next_s)

    def recover(self, error: Unavailable | Fenced) -> None:
        """Begin the place anew."""
        self._fault, self._next_s = str(error), time.monotonic() + _LOOK_S

    def go_on(self) -> bool:
        """Do the next place of each order; return whether any was possible."""
        with self._store.look() as view:
            orders = view.erasures.in_force()
        self._tell(orders)
        if time.monotonic() >= self._look_back_s:
            self.look_back()
        did = [self._go_on(order) for order in orders]  # each has its turn
        return any(did)

    def look_back(self) -> None:
        """Put orders in force again of which more came late, out of a spool that was away."""
        self._look_back_s = time.monotonic() + _LOOK_BACK_S
        after, is_over = 0, False
        while not is_over:
            with self._store.look() as view:
                done = view.erasures.done_after(after, _PART)
                back = view.sweeps.with_more(done)
            for order in back:
                self._reopen(order)
            is_over = len(done) < _PART
            after = after if is_over else done[-1].erasure_id

    def _reopen(self, order: Erasure) -> None:
        with self._store.work() as work:
            work.erasures.reopen(order)
            found = order.sessions
            if order.kind == "user":
                found = tuple(work.sweeps.sessions_of(order.namespace, UserHash(order.subject), order.ordered_at))
            elif order.kind == "namespace":
                found = tuple(work.sweeps.sessions_in(order.namespace, order.ordered_at))
            work.erasures.widen(order, sorted({*found} - {*order.sessions}), self._clock.now())
        logger.warning("erasure %d: more of it came late", order.erasure_id)

    def _go_on(self, order: Erasure) -> bool:
        """Do the next place of an order; return whether that was possible."""
        places = self._of_policy if order.kind == "organisation" else self._places
        place = next((each for each in places if not _is_done(order, each)), None)
        if place is None:
            self._end(order)
            return True
        try:
            step = place.erase(order)
        except (NotYet, OSError) as reason:  # as of an archive that lets nothing be replaced
            if order.waits_for != str(reason):
                with self._store.work() as work:
                    work.erasures.wait_for(order.erasure_id, str(reason))
            return False
        with self._store.work() as work:
            work.erasures.took(order.erasure_id, place.name, step)
            work.erasures.wait_for(order.erasure_id, "")
        logger.info("erasure %d: %s is done", order.erasure_id, place.name)
        return True

    def _end(self, order: Erasure) -> None:
        now = self._clock.now()
        signed = self._signer.sign(statement_of(order, now.isoformat()))
        with self._store.work() as work:
            work.erasures.end(order.erasure_id, now, signed)
        telemetry.ERASURES_DONE.inc()
        logger.warning("erasure %d is done, and stated", order.erasure_id)

    def _tell(self, orders: Sequence[Erasure]) -> None:
        now = self._clock.now()
        telemetry.ERASURES_OPEN.set(len(orders))
        telemetry.ERASURES_OVERDUE.set(sum(order.deadline_at < now for order in orders))


def _is_done(order: Erasure, place: Place) -> bool:
    """Return whether a place is done. What the API redacted at once is to be looked at again."""
    step = order.steps.get(place.name)
    return step is not None and FIRST not in step.marks


class Widening:
    """What becomes of sessions that were found later than the order was given."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def __call__(self, order: Erasure, sessions: Sequence[SessionId]) -> None:
        with self._store.work() as work:
            work.erasures.widen(order, sessions, self._clock.now())
