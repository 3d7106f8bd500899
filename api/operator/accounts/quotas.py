"""The route `GET /v1/quotas`: what a namespace, its keys and its users have used in this month, and what it cost."""

from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters, whole_number
from api.turns.lookup import read
from core.operations.quotas import Account, Use, month_of, quota_of, seconds_left_in_month
from core.settings import PriceSettings, Quota

_LARGEST_PAGE = 1000
_DEFAULT_LIMIT = 100
_LIMITED = ("requests", "tokens", "stored_bytes")


def quotas_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["quotas"])
    services = context.services

    @router.get("/v1/quotas")
    async def list_quotas(request: Request) -> Response:
        """Return the accounts of the namespace, those first that used the most tokens in this month.

        Of users those are listed that have used something. What was used is as the store knows it, a second or two
        late; `left` is null where there is no limit. `cost` is that of the month's tokens by `prices`, which are of a
        million; where it is null, `cost_unknown` says why: `no_price`, or `not_counted` where an earlier build, which
        did not tell a prompt's tokens from an answer's, served in this month. Without prices what has no quota is not
        counted."""
        identity = identity_of(request)
        only_parameters(request, "limit")
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1)
        now = services.clock.now()
        month, namespace = month_of(now), identity.namespace
        used = await read(services, lambda view: view.spending.of_namespace(month, namespace, limit))
        own, prices = Account("namespace", namespace, namespace), services.settings.prices
        if namespace in services.quotas.namespaces or prices.are_known:
            used.setdefault(own, Use())
        data = [
            _described(account, use, quota_of(services.quotas, account) or Quota(), prices)
            for account, use in used.items()
        ]
        return json_response(
            {
                "object": "list",
                "month": month,
                "resets_in_s": round(seconds_left_in_month(now)),
                "prices": prices.model_dump() if prices.are_known else None,
                "data": data,
            }
        )

    return router


def _described(account: Account, use: Use, quota: Quota, prices: PriceSettings) -> dict[str, Any]:
    left = {of: _left(getattr(quota, f"{of}_per_month"), getattr(use, of)) for of in _LIMITED}
    cost, cost_unknown = _cost(use, prices)
    return {
        "kind": account.kind,
        "name": account.name,
        "used": use._asdict(),
        "left": left,
        "limits": quota.model_dump(),
        "cost": cost,
        "cost_unknown": cost_unknown,
    }


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


def _cost(use: Use, prices: PriceSettings) -> tuple[float | None, str | None]:
    """Return the cost, or why nobody knows it: what is unknown is never shown as free."""
    if not prices.are_known:
        return None, "no_price"
    if use.new_prompt_tokens is None or use.output_tokens is None:
        return None, "not_counted"
    return prices.cost(use.new_prompt_tokens, use.output_tokens), None
