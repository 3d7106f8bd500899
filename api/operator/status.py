"""The route `GET /v1/status`: the state of everything in one answer, for a console."""

import collections
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters
from api.access.quotas.limits import ERRORS, REQUESTS, TURNS
from api.operator.figures.counts import values
from api.operator.health import readiness_of
from api.turns.lookup import read
from core import telemetry
from core.codec import to_builtins
from core.errors import StoreUnavailable
from core.ids import Namespace
from core.ports import LiveState
from core.store.work import View

_STORED = ("versions", "last_release", "experiment", "fleet")


def status_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["status"])
    services = context.services

    @router.get("/v1/status")
    async def get_status(request: Request) -> Response:
        """Return the state of the service; what the store would tell is null while it does not answer.

        It has the live version, versions by state, the running experiment, engines by state, what this process has
        counted since its start (`busy_s`: seconds in which an engine worked for it), and what all API replicas were
        asked in the last minute by the caller's namespace (`complete` is false when it is this one only). What it
        counted is null to a key without the scope admin where other namespaces use the service, too.
        `last_release` is the sequence of the newest of `/v1/releases`."""
        identity = identity_of(request)
        only_parameters(request)
        try:
            stored = await read(services, lambda view: _stored(view, services.cluster))
        except StoreUnavailable:
            stored = dict.fromkeys(_STORED)
        return json_response(
            {
                "model": services.model_name,
                "live": services.policy.live_version,
                **stored,
                **_counted(is_shown=context.keys.sees_all(identity)),
                "last_minute": await _last_minute(services.live_state, identity.namespace),
                "readiness": readiness_of(services),
            }
        )

    return router


def _stored(view: View, cluster: str) -> dict[str, Any]:
    running = view.experiments.running(cluster)
    return {
        "versions": view.policies.count_states(),
        "last_release": view.releases.last_sequence(),
        "experiment": None if running is None else to_builtins(running),
        "fleet": dict(collections.Counter(status.state for status in view.fleet.statuses(cluster))),
    }


async def _last_minute(live_state: LiveState, namespace: Namespace) -> dict[str, Any]:
    recent = await live_state.counts(namespace)
    return {**{name: recent.counts.get(name, 0) for name in (REQUESTS, TURNS, ERRORS)}, "complete": recent.complete}


def _counted(*, is_shown: bool) -> dict[str, Any]:
    """Return what this process has counted, of all namespaces together."""
    if not is_shown:
        return dict.fromkeys(("turns", "tokens", "busy_s"))
    return {"turns": _turns(), "tokens": _tokens(), "busy_s": sum(values(telemetry.BUSY_SECONDS).values())}


def _turns() -> dict[str, Any]:
    """Count answered turns, and untrainable ones by reason; a turn with several reasons counts under each."""
    return {
        "answered": int(sum(values(telemetry.TURNS).values())),
        "untrainable": {reason: int(count) for (reason,), count in values(telemetry.UNTRAINABLE_TURNS).items()},
    }


def _tokens() -> dict[str, Any]:
    generated, prefilled, cached = (
        int(sum(values(counter).values()))
        for counter in (telemetry.GENERATED_TOKENS, telemetry.PREFILLED_TOKENS, telemetry.CACHED_TOKENS)
    )
    share = cached / (cached + prefilled) if cached + prefilled else None
    return {"generated": generated, "prefilled": prefilled, "cached": cached, "cached_share": share}
