"""What was erased after a backup was made is erased from what it brings back, before anybody is served from it.

The store is redacted in the transaction that gives each order anew; the service that is started then obeys it in every
other place, weights and all. The orders are those of a store that is still there, of an answer to `GET /v1/erasures`
that somebody kept, or signed statements."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from core.errors import ConfigError
from core.ids import Namespace
from core.operations.erasures import ErasedKind, Erasure
from core.records.erasure_orders import give, redact_rest
from core.store.work import View
from ingest.erasure.statement import verified
from onward.replays.history import require_directory
from onward.wiring.foundation import Foundation, open_foundation

_MOST: Final = 1_000_000
_BY: Final = "restore"


class Erased(msgspec.Struct, frozen=True):
    """An order to erase, as far as it must be known to be given again; statements have it, and so have answers."""

    namespace: Namespace
    kind: ErasedKind
    subject: str
    ordered_at: datetime
    namespaces: tuple[Namespace, ...] = ()


def read_erased(sources: Sequence[Path], overrides: Mapping[str, str]) -> list[Erased]:
    """Return the orders of these files, and of the services in these directories, the oldest first.

    Raises ConfigError naming the file at fault, also for a statement whose signature is wrong."""
    found = {order for source in sources for order in _read(source, overrides)}
    return sorted(found, key=lambda order: (order.ordered_at, order.kind == "organisation"))


def _read(source: Path, overrides: Mapping[str, str]) -> list[Erased]:
    if source.is_dir():
        require_directory(source)
        with closing(open_foundation(source, overrides)) as foundation, foundation.store.look() as view:
            return [_erased(msgspec.to_builtins(order)) for order in view.erasures.newest(None, _MOST)]
    try:
        text = source.read_text()
        told = json.loads(text)
        if "data" in told:
            return [_erased(order) for order in told["data"]]
        return [_erased(verified(text)[0])]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"--erasures {source}: {error}") from error


def _erased(told: dict[str, Any]) -> Erased:
    return msgspec.convert(told, Erased, strict=False)


def erase_again(foundation: Foundation, orders: Sequence[Erased]) -> list[int]:
    """Give the orders that a restored store does not know; return their numbers, which are new ones."""
    given: list[int] = []
    for order in orders:
        with foundation.store.look() as view:
            is_known = _is_known(view, order)
        if not is_known:
            given.append(_give(foundation, order))
    return given


def _is_known(view: View, order: Erased) -> bool:
    known = view.erasures.newest(order.namespace, _MOST)
    same = (order.kind, order.subject, order.ordered_at)
    return any((each.kind, each.subject, each.ordered_at) == same for each in known)


def _give(foundation: Foundation, order: Erased) -> int:
    asked = Erasure(
        erasure_id=0,
        namespace=order.namespace,
        kind=order.kind,
        subject=order.subject,
        why="it was erased after the backup was made",
        by=_BY,
        ordered_at=order.ordered_at,
        deadline_at=order.ordered_at + timedelta(days=foundation.settings.privacy.erasure_days),
        namespaces=order.namespaces,
    )
    with foundation.store.work() as work:
        if order.kind == "organisation":
            return work.erasures.give(msgspec.structs.replace(asked, parts=_parts(work, order)))
        given, rest = give(work, asked)
    redact_rest(foundation.store, given, rest)
    return given.erasure_id


def _parts(view: View, order: Erased) -> tuple[int, ...]:
    """Return the newest order for each of the organisation's namespaces, which was given before it."""
    of = [view.erasures.newest(name, _MOST) for name in order.namespaces]
    found = [next((each for each in orders if each.kind == "namespace"), None) for orders in of]
    return tuple(each.erasure_id for each in found if each is not None)
