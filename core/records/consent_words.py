"""Words of consent as they are given: an order to exclude turns follows from each that holds, or is lifted by it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from core.operations.consents import Consent
from core.operations.erasures import ERASED, Erasure
from core.store.work import Work

_LEAST: Final = timedelta(microseconds=1)


def give(work: Work, word: Consent, now: datetime) -> Consent:
    """Store a word, and return it with its number and the order to exclude that stands for it.

    One that is older than what holds, as it may come from another cluster, joins the history and changes nothing."""
    work.consents.hold()
    before = next(iter(work.consents.newest(word.namespace, word.kind, word.subject, 1)), None)
    if before is not None and word.order < before.order:
        return work.consents.add(word)
    order, why = None if before is None else before.exclusion_id, _why(word)
    if word.learn and order is not None:
        work.exclusions.lift(order, why, word.by, now)
        order = None
    elif not word.learn and order is None:
        order = work.exclusions.give(word.selection, why, word.by, now)
    return work.consents.add(msgspec.structs.replace(word, exclusion_id=order))


def moment_after(before: Consent | None, now: datetime) -> datetime:
    """Return when a word is brought: after the one before it, which may come from a clock that is ahead."""
    return now if before is None else max(now, before.at + _LEAST)


def takes_reason(order: Erasure) -> Callable[[Consent], bool]:
    """Return what says whether an order to erase takes a word's reason: one of whom it erases, from before it."""
    sessions = frozenset(order.sessions)

    def takes(word: Consent) -> bool:
        if word.namespace != order.namespace or word.at >= order.ordered_at:
            return False
        is_of_session = word.kind == "session" and word.subject in sessions
        return order.kind == "namespace" or is_of_session or (order.kind, order.subject) == (word.kind, word.subject)

    return takes


def _why(word: Consent) -> str:
    return f"consent of a {word.kind}: {word.why}" if word.why else ERASED
