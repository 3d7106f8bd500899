"""Orders to the release controller, which may be another process: written to the store, and waited for."""

import asyncio
from typing import NoReturn

from api.access.services import ApiServices
from api.access.trail import Note
from api.turns.lookup import read
from core.errors import Conflict, EngineUnavailable, InvalidRequest, NotFound
from core.ids import PolicyRef
from core.operations.fleet import Order, OrderKind
from core.store.work import View

_POLL_S = 0.05


async def carry_out(services: ApiServices, kind: OrderKind, version: PolicyRef, why: str, by: str, note: Note) -> bool:
    """Give an order and return whether it is done; False when it still waits after `order_wait_s`.

    Raises what the controller refused it with: NotFound, InvalidRequest, Conflict, EngineUnavailable."""
    order_id = await asyncio.to_thread(_give, services, kind, version, why, by, note)
    deadline_s = services.clock.monotonic() + services.settings.advanced.order_wait_s
    while services.clock.monotonic() < deadline_s:
        order = await read(services, lambda view: _get(view, order_id))
        if order.done_at is not None:
            if order.error is not None:
                _refuse(order)
            return True
        await asyncio.sleep(_POLL_S)
    return False


def _give(services: ApiServices, kind: OrderKind, version: PolicyRef, why: str, by: str, note: Note) -> int:
    with services.store.work() as work:
        order_id = work.orders.give(services.cluster, kind, version, why, by, services.clock.now())
        note.write(work, order_id=order_id)
    return order_id


def _get(view: View, order_id: int) -> Order:
    order = view.orders.get(order_id)
    assert order is not None, "orders are never deleted"
    return order


def _refuse(order: Order) -> NoReturn:
    assert order.error is not None
    match order.error_code:
        case "unknown_version":
            raise NotFound(f"{order.error}; GET /v1/policies lists them", param="version", code="unknown_version")
        case "invalid":
            raise InvalidRequest(order.error, param="version", code="not_possible")
        case "unavailable":
            raise EngineUnavailable(order.error)
    raise Conflict(order.error, param="version", code=f"{order.kind}_refused")
