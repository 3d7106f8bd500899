"""`/healthz`, `/readyz` and `/metrics`: for the machines that watch. They need no key and tell nothing of tenants."""

from typing import Any

from fastapi import APIRouter, Response

from api.context import Context
from api.plain import json_response
from api.services import ApiServices
from core.telemetry import CONTENT_TYPE, exposition

OK = "ok"


def readiness_of(services: ApiServices) -> dict[str, Any]:
    components = dict(services.readiness())
    wrong = any(state != OK for state in components.values())
    return {"status": "not ready" if wrong else OK, "components": components}


def health_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def health() -> Response:
        """The process answers."""
        return json_response({"status": OK})

    @router.get("/readyz")
    async def ready() -> Response:
        """Every component works; else 503 with what is wrong with each."""
        found = readiness_of(context.services)
        return json_response(found, 200 if found["status"] == OK else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(exposition(), media_type=CONTENT_TYPE)

    return router
