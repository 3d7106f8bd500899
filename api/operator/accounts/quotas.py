"""The route `GET /v1/quotas`: what a namespace, its keys and its users have used of their quotas in this month."""

from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.plain import identity_of, json_response, only_parameters, whole_number
from api.turns.lookup import read
from core.operations.quotas import Account, Use, month_of, quota_of, seconds_left_in_month
from core.settings import Quota

_LARGEST_PAGE = 1000
_DEFAULT_LIMIT = 100


def quotas_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["quotas"])
    services = context.services

    @router.get("/v1/quotas")
    async def list_quotas(request: Request) -> Response:
        """Return the accounts of the namespace, those first that used the most tokens in this month.

        Of users those are listed that have used something. What was used is as the store knows it, a second or two
        late; `left` is null where there is no limit."""
        identity = identity_of(request)
        only_parameters(request, "limit")
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1)
        now = services.clock.now()
        month, namespace = month_of(now), identity.namespace
        used = await read(services, lambda view: view.spending.of_namespace(month, namespace, limit))
        own = Account("namespace", namespace, namespace)
        if namespace in services.quotas.namespaces:
            used.setdefault(own, Use())
        data = [
            _described(account, use, quota_of(services.quotas, account) or Quota()) for account, use in used.items()
        ]
        answer = {"object": "list", "month": month, "resets_in_s": round(seconds_left_in_month(now)), "data": data}
        return json_response(answer)

    return router


def _described(account: Account, use: Use, quota: Quota) -> dict[str, Any]:
    left = {of: _left(getattr(quota, f"{of}_per_month"), used) for of, used in use._asdict().items()}
    return {
        "kind": account.kind,
        "name": account.name,
        "used": use._asdict(),
        "left": left,
        "limits": quota.model_dump(),
    }


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)
