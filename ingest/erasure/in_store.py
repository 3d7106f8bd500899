"""Erasure in the store, once nobody brings words there any more; its files are then written anew."""

from collections.abc import Callable

from core.operations.erasures import Erasure, Step
from core.ports import Store
from core.records.erasing import digest_of

NAME = "store"


class InStore:
    """Its rows. The API redacted at once what was there when the order was given."""

    name = NAME

    def __init__(self, store: Store, scrub: Callable[[], None]) -> None:
        self._store, self._scrub = store, scrub

    def erase(self, order: Erasure) -> Step:
        before = order.steps.get(NAME, Step()).removed
        with self._store.work() as work:
            counts, ids = work.sweeps.redact(order.namespace, order.sessions, order.ordered_at)
            counts |= work.sweeps.redact_subject(order)
        self._scrub()
        removed = {name: max(counts.get(name, 0), before.get(name, 0)) for name in {*counts, *before}}
        return Step(removed=dict(sorted(removed.items())), digest=digest_of(ids))


class InExports:
    """The exports in which one of the sessions is: they are others' by now, and can only be named."""

    name = "exports"

    def __init__(self, store: Store) -> None:
        self._store = store

    def erase(self, order: Erasure) -> Step:
        with self._store.look() as view:
            names = tuple(dict.fromkeys(view.exports.holding(order.namespace, order.sessions)))
        note = "these files left the service: whoever has them is to delete them" if names else ""
        return Step(removed={}, names=names, note=note)
