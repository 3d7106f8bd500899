"""The route `/v1/fleet`: the engines, as their hosts report them, beside the targets they were given."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import json_response, only_parameters
from api.turns.lookup import read
from core.operations.fleet import ReplicaStatus, ReplicaTarget


def fleet_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["fleet"])
    services = context.services

    @router.get("/v1/fleet")
    async def list_replicas(request: Request) -> Response:
        """Return every engine whose host has reported and has not signed off.

        `heartbeat_age_s` shows which hosts are silent."""
        only_parameters(request)
        statuses = await read(services, lambda view: view.fleet.statuses(services.cluster))
        targets = await read(services, lambda view: view.fleet.targets(services.cluster))
        now = services.clock.now()
        data = [_described(status, targets.get(status.name), now) for status in statuses]
        return json_response({"object": "list", "live": services.policy.live_version, "data": data})

    return router


def _described(status: ReplicaStatus, target: ReplicaTarget | None, now: datetime) -> dict[str, Any]:
    return {
        "name": status.name,
        "url": status.url,
        "state": status.state,
        "detail": status.detail,
        "lane": "live" if target is None else target.lane,
        "target": None if target is None else target.serve,
        "serving": status.serving,
        "held": sorted(status.figures),
        "refused": {str(version): why for version, why in status.refused.items()},
        "heartbeat_age_s": max(0.0, (now - status.heartbeat_at).total_seconds()),
    }
