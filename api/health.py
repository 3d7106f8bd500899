"""`/healthz`, `/readyz` and `/metrics`: for the machines that watch. They need no key and tell nothing of tenants."""

from fastapi import APIRouter, Response

from api.context import Context
from api.plain import json_response
from core.telemetry import CONTENT_TYPE, exposition

OK = "ok"


def health_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz")
    async def health() -> Response:
        """The process answers."""
        return json_response({"status": OK})

    @router.get("/readyz")
    async def ready() -> Response:
        """Every component works; else 503 with what is wrong with each."""
        components = dict(context.services.readiness())
        wrong = any(state != OK for state in components.values())
        return json_response({"status": "not ready" if wrong else OK, "components": components}, 503 if wrong else 200)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(exposition(), media_type=CONTENT_TYPE)

    return router
