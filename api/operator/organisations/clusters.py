"""The route `GET /v1/clusters`: which clusters there are, and what each said last."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.plain import json_response, only_parameters
from core.errors import Unavailable
from core.records.clusters import ClusterStanding


def clusters_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["clusters"])
    services = context.services

    @router.get("/v1/clusters")
    async def list_clusters(request: Request) -> Response:
        """Return the clusters that share a bucket with this one, home first; none where there is one cluster.

        `behind` counts home's releases that a cluster has not followed, `unsent` the records that home does not have,
        both as of `seen_s_ago`. `unreachable` says why the bucket does not answer, else it is null."""
        only_parameters(request)
        found, why = await asyncio.to_thread(_ask, services.clusters)
        now = services.clock.now()
        data = [_described(each, now) for each in found]
        return json_response({"object": "list", "this": services.cluster, "unreachable": why, "data": data})

    return router


def _ask(clusters: Callable[[], Sequence[ClusterStanding]]) -> tuple[Sequence[ClusterStanding], str | None]:
    try:
        found = clusters()
    except Unavailable as error:
        return (), str(error)
    return sorted(found, key=lambda each: (each.status.role != "home", each.status.cluster)), None


def _described(standing: ClusterStanding, now: datetime) -> dict[str, Any]:
    status = standing.status
    return {
        "cluster": status.cluster,
        "role": status.role,
        "live": status.live,
        "behind": standing.behind,
        "unsent": status.unsent,
        "seen_s_ago": max(0.0, (now - status.at).total_seconds()),
    }
