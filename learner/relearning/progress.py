"""What the store, and so the console, is told of a relearning: how far it is, how fast, and how long it will take."""

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from core.ids import BASE, PolicyName, PolicyRef
from core.operations.exclusions import Relearning
from core.ports import Clock, Store
from learner.versions.journal import Plan

NOTHING = "no version of the learner's line learned from it: nothing is made again"
logger = logging.getLogger(__name__)


class Progress:
    """Writes it beside the orders, in the store."""

    def __init__(
        self, store: Store, clock: Clock, policy: PolicyName = BASE, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._clock, self._policy, self._now_s = store, clock, policy, now_s
        self._began_s: float | None = None
        self._began_with = 0

    def touches_nothing(self, orders: Sequence[int], unknown: int) -> None:
        """Say that orders ask for nothing, unless one has been obeyed before, by a learner that lost its journal."""
        now = self._clock.now()
        with self._store.look() as view:
            known = {number: view.exclusions.get(number) for number in orders}
        told = {number: each and each.of(self._policy) for number, each in known.items()}
        news = [number for number, before in told.items() if before is None or before.ended_at is None]
        self._write(news, Relearning(unknown=unknown, began_at=now, ended_at=now, note=NOTHING))

    def fail(self, orders: Sequence[int], why: str) -> None:
        """Say that orders cannot be obeyed."""
        now = self._clock.now()
        self._write(orders, Relearning(note=why, state="failed", began_at=now, ended_at=now))

    def joined(self, orders: Sequence[int], plan: Plan, newest: PolicyRef) -> None:
        """Say that orders are obeyed by what is under way: the updates that are still to be made again."""
        now = self._clock.now()
        found = Relearning(start=newest, updates=plan.updates, made_again=plan.made_again, began_at=now)
        self._write(orders, found)

    def begin(self, orders: Sequence[int], plan: Plan, first_use: PolicyRef, start: PolicyRef, unknown: int) -> None:
        """Say where orders begin; others that are being obeyed have the same way to go from there."""
        self._began_s = None
        now = self._clock.now()
        begun = Relearning(first_use=first_use, start=start, updates=plan.updates, unknown=unknown, began_at=now)
        self._write(orders, begun)
        self._change(plan, updates=plan.updates, made_again=0, emptied=0, lost=0, per_s=None, left_s=None)

    def went_on(self, plan: Plan, version: PolicyRef) -> None:
        """Say that an update was made again, or left out."""
        done, now_s = plan.updates - len(plan.left), self._now_s()
        if self._began_s is None:
            self._began_s, self._began_with = now_s, done
        rate, spent_s = None, now_s - self._began_s
        if done > self._began_with and spent_s > 0:
            rate = (done - self._began_with) / spent_s
        self._change(
            plan,
            updates=plan.updates,
            made_again=plan.made_again,
            emptied=plan.emptied,
            lost=plan.lost,
            per_s=rate,
            left_s=None if rate is None else len(plan.left) / rate,
            version=version,
        )

    def end(self, plan: Plan, newest: PolicyRef | None, note: str = "") -> None:
        """Say that it is over; `newest` is the version that it came to."""
        if not note and not plan.made_again:
            note = f"nothing else was learned since: version {newest} is what is left of it; roll back to it"
        logger.info("what was excluded is unlearned: %s", note or f"version {newest} is a candidate")
        changes = {} if newest is None else {"version": newest}
        self._change(plan, ended_at=self._clock.now(), left_s=0.0, note=note, **changes)

    def _change(self, plan: Plan, **changes: object) -> None:
        with self._store.work() as work:
            for number in plan.orders:
                order = work.exclusions.get(number)
                assert order is not None, "orders are never deleted"
                before = order.of(self._policy) or Relearning(began_at=self._clock.now())
                if before.ended_at is None:
                    work.exclusions.report(number, msgspec.structs.replace(before, **changes), self._policy)

    def _write(self, orders: Sequence[int], found: Relearning) -> None:
        with self._store.work() as work:
            for number in orders:
                work.exclusions.report(number, found, self._policy)
