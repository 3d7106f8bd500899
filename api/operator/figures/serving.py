"""The route `GET /v1/serving`: how soon and how fast answers come, what waits, and what the disk holds."""

import math
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters, whole_number
from api.http.background import on_a_thread
from api.operator.figures.counts import quantile_of, value
from api.operator.figures.intervals import quantile
from api.turns.lookup import read
from core import telemetry
from core.store.newest.recent import Served

_TURNS, _MOST_TURNS = 300, 1000  # whose whole records are read
_MS_TO_S = 0.001


def serving_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["status"])
    services = context.services

    @router.get("/v1/serving")
    async def get_serving(request: Request) -> Response:
        """Return the speed of the newest `turns` turns of the caller's namespace, the queue, and sizes in bytes.

        Turns of low priority, for which nobody waits, are left out of the speed.

        `tokens_per_s` is a turn's, from its first token to its last. The queue is that of an engine in this process,
        or of SGLang's where it tells (`--enable-metrics`), which does not tell how many wait: null while there was no
        request. `disk` has what this machine holds of the service's parts, and what is free.
        Both are null to a key without the scope admin where other namespaces use the service, too."""
        identity = identity_of(request)
        only_parameters(request, "turns")
        limit = whole_number(request, "turns", _TURNS, _MOST_TURNS, least=1)
        turns = await read(services, lambda view: view.recent.served(identity.namespace, limit))
        is_shown = context.keys.sees_all(identity)
        return json_response(
            {
                "object": "serving",
                "turns": len(turns),
                "since": turns[-1].received_at if turns else None,
                **_speed([turn for turn in turns if turn.priority == "normal"]),
                "queue": _queue() if is_shown else None,
                "disk": await on_a_thread(services.disk) if is_shown else None,
            }
        )

    return router


def _speed(turns: list[Served]) -> dict[str, Any]:
    waits_s = sorted(_MS_TO_S * turn.ttft_ms for turn in turns if turn.ttft_ms is not None)
    whole_s = sorted(_MS_TO_S * turn.latency_ms for turn in turns)
    rates = sorted(rate for rate in map(_rate, turns) if rate is not None)
    return {
        "first_token_s": {"p50": quantile(waits_s, 0.5), "p99": quantile(waits_s, 0.99)},
        "turn_s": {"p50": quantile(whole_s, 0.5), "p99": quantile(whole_s, 0.99)},
        "tokens_per_s": {"p50": quantile(rates, 0.5), "p10": quantile(rates, 0.1)},
    }


def _rate(turn: Served) -> float | None:
    """Return the tokens a second after the first one; None where there is no more than one, or all came at once."""
    if turn.ttft_ms is None or turn.delivered_tokens < 2 or turn.latency_ms <= turn.ttft_ms:
        return None
    return (turn.delivered_tokens - 1) / (_MS_TO_S * (turn.latency_ms - turn.ttft_ms))


def _queue() -> dict[str, Any] | None:
    wait_s = {name: quantile_of(telemetry.QUEUE_SECONDS, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    if wait_s["p50"] is None:
        return None
    waiting = value(telemetry.WAITING_REQUESTS)
    return {
        "waiting": None if math.isnan(waiting) else int(waiting),
        "running": int(value(telemetry.RUNNING_REQUESTS)),
        "wait_s": wait_s,
    }
