"""The routes `/healthz` (or `/health`), `/readyz` and `/metrics`, for monitoring.

The first two need no key and tell nothing of tenants. Metrics tell a stranger none of the names that clients and
operators choose; where several namespaces use the service, they take the scope admin, since sums are of all."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from api.access.context import ApiContext
from api.access.identity import KeyRing
from api.access.plain import json_response
from api.access.services import DEGRADED, OK, ApiServices
from api.http.background import Shared
from core.telemetry import CONTENT_TYPE, exposition


def readiness_of(services: ApiServices) -> dict[str, Any]:
    components = dict(services.readiness())
    wrong = {state.partition(":")[0] for state in components.values()} - {OK}
    status = "not ready" if wrong - {DEGRADED} else DEGRADED if wrong else OK
    return {"status": status, "components": components}


def health_router(context: ApiContext) -> APIRouter:
    router, pages = APIRouter(tags=["health"]), Shared()

    @router.get("/healthz")
    @router.get("/health", name="health_of_clients")
    async def health() -> Response:
        """Answer that the process is alive; `/health` is where clients of llama.cpp and vLLM look."""
        return json_response({"status": OK})

    @router.get("/readyz")
    async def ready() -> Response:
        """Answer whether every component works, or costs only speed; else 503 with what is wrong with each."""
        found = readiness_of(context.services)
        return json_response(found, 503 if found["status"] == "not ready" else 200)

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Return the metrics in Prometheus' text format.

        Where there are keys of several namespaces, they need one with the scope admin. Where there are keys of one, a
        caller without the scope read gets sums over all workloads."""
        named = _sees_names(context.keys, request)
        return Response(await pages.run(named, partial(exposition, named=named)), media_type=CONTENT_TYPE)

    return router


def _sees_names(keys: KeyRing, request: Request) -> bool:
    """Return whether the caller may see the namespaces and workloads. Raises Unauthorized, Forbidden."""
    headers = dict(request.scope["headers"])
    said = headers.get(b"authorization"), headers.get(b"x-api-key")
    if keys.is_needed and not keys.is_shared and not any(said):
        return False
    identity = keys.identify(*said)
    if keys.is_shared:
        identity.require("admin")
    return "read" in identity.scopes
