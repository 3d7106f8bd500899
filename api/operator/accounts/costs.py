"""The route `GET /v1/costs`: what organisations used in a month, and what it costs by the prices of the settings."""

from decimal import Decimal
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.identity import Identity
from api.access.own_policy import own_policy
from api.access.plain import identity_of, json_response, only_parameters
from api.access.services import ApiServices
from api.turns.lookup import read
from core.errors import InvalidRequest
from core.ids import BASE
from core.operations.costs import LEARNER, Payer, Prices, Used, is_month
from core.operations.quotas import month_of
from core.settings import CostSettings
from core.store.work import View

_Rows = dict[Payer, tuple[Used, int]]


def costs_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["quotas"])
    services = context.services

    @router.get("/v1/costs")
    async def list_costs(request: Request) -> Response:
        """Return what was used in `month` (this one, unless it is named), by namespace and policy.

        With the scope `admin` it is everybody's, else the namespace's own, and its policy's learner where that is not
        everybody's. A row without a namespace is a policy's learner. `total` is the sum of the rows, to the last digit;
        costs are null where the settings name no currency."""
        identity = identity_of(request)
        only_parameters(request, "month")
        month = request.query_params.get("month", month_of(services.clock.now()))
        if not is_month(month):
            raise InvalidRequest("month: want a year and a month, as in 2026-11", param="month")
        found = await read(services, lambda view: _rows(view, month))
        rows = {payer: row for payer, row in found.items() if _may_see(services, identity, payer)}
        return json_response(_described(month, rows, services.costs))

    return router


def _rows(view: View, month: str) -> _Rows:
    """Return what each used in the month, and the bytes that are held for it at its end."""
    used, held = view.costs.of_month(month), view.costs.held(month)
    rows = {Payer(month, *whose): (Used(), size) for whose, size in held.items() if size}
    rows |= {payer: (each, held[payer.namespace, payer.policy]) for payer, each in used.items()}
    return dict(sorted(rows.items(), key=lambda row: (row[0].policy, row[0].namespace)))


def _may_see(services: ApiServices, identity: Identity, payer: Payer) -> bool:
    if "admin" in identity.scopes:
        return True
    if payer.namespace == LEARNER:
        return payer.policy != BASE and payer.policy == own_policy(services, identity)
    return payer.namespace == identity.namespace


def _described(month: str, rows: _Rows, settings: CostSettings) -> dict[str, Any]:
    prices = None if settings.currency is None else _prices(settings)
    data, total = [], Decimal(0)
    for payer, (used, held_bytes) in rows.items():
        row: dict[str, Any] = {
            "namespace": payer.namespace or None,
            "policy": payer.policy,
            "used": {**used._asdict(), "held_bytes": held_bytes},
            "cost": None,
        }
        if prices is not None:
            costs = prices.of(used, held_bytes)
            cost = sum(costs.values(), Decimal(0))
            total += cost
            row["cost"] = {name: float(each) for name, each in costs.items()} | {"total": float(cost)}
        data.append(row)
    said = None if prices is None else float(total)
    return {"object": "list", "month": month, "currency": settings.currency, "total": said, "data": data}


def _prices(settings: CostSettings) -> Prices:
    """Return the prices as they are written, since a binary fraction is another number."""
    return Prices(*(Decimal(str(getattr(settings, name))) for name in Prices._fields))
