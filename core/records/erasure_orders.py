"""Orders to erase as they are given: what of one is in the store is redacted in the same transaction."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from core.ids import Namespace, SessionId, UserHash
from core.operations.erasures import FIRST, ErasedKind, Erasure, Step
from core.ports import Store
from core.store.work import View, Work

_AT_ONCE: Final = 2000  # sessions that are redacted in one transaction


def give(work: Work, order: Erasure, also: Sequence[SessionId] = ()) -> tuple[Erasure, Sequence[SessionId]]:
    """Store an order and redact its sessions, so that nobody reads them from then on; or find one that means the same.

    Where more came after one in force, it is another order, which means the sessions of that one, too. `also`: sessions
    that are known elsewhere to be of it. Returns (the order, sessions that `redact_rest` is to redact, where they are
    too many for one transaction)."""
    before = work.erasures.in_force_for(order)
    number, now = work.erasures.give(order), order.ordered_at
    known = _get(work, number)
    if known.sessions or known.steps:
        return known, ()
    earlier = () if before is None else before.sessions
    sessions = sorted({*sessions_of(work, order.namespace, order.kind, order.subject, now), *also, *earlier})
    work.erasures.widen(known, sessions, now)
    counts = work.sweeps.redact_subject(_get(work, number))
    rest = sessions if len(sessions) > _AT_ONCE else []
    if not rest:
        counts |= work.sweeps.redact(order.namespace, sessions, now)[0]
    work.erasures.took(number, "store", Step(removed=counts, marks={FIRST: 1}))
    return _get(work, number), rest


def part_of(order: Erasure, namespace: Namespace, now: datetime) -> Erasure:
    """Return the order for a namespace of an organisation that is erased, as it is given now."""
    return Erasure(
        erasure_id=0,
        namespace=namespace,
        kind="namespace",
        subject=namespace,
        why=order.why,
        by=order.by,
        ordered_at=now,
        deadline_at=order.deadline_at,
    )


def redact_rest(store: Store, order: Erasure, sessions: Sequence[SessionId]) -> None:
    """Redact sessions part by part, so that nobody waits for the store that long."""
    for start in range(0, len(sessions), _AT_ONCE):
        with store.work() as work:
            work.sweeps.redact(order.namespace, sessions[start : start + _AT_ONCE], order.ordered_at)


def sessions_of(view: View, namespace: Namespace, kind: ErasedKind, subject: str, until: datetime) -> list[SessionId]:
    """Return the sessions that an order means: its own, or those in which its user spoke."""
    if kind == "session":
        return [SessionId(subject)]
    if kind == "namespace":
        return view.sweeps.sessions_in(namespace, until)
    return view.sweeps.sessions_of(namespace, UserHash(subject), until)


def _get(work: Work, number: int) -> Erasure:
    order = work.erasures.get(number)
    assert order is not None, "orders are never deleted"
    return order
