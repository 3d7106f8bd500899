"""The route `GET /v1/clients`: for each program that asks, in each protocol, what it gets and what comes back of it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import identity_of, json_response, only_parameters, whole_number
from api.operator.figures.counts import values
from api.turns.lookup import read
from core.ids import InferenceId, Namespace
from core.store.newest.recent import Served
from core.store.work import View
from core.telemetry import REFUSED_REQUESTS, UNJOINED_EVENTS

_TURNS, _MOST_TURNS = 500, 1000  # whose whole records are read
_UNKNOWN = "unknown"  # of turns of before it was noted

Asker = tuple[str, str]
"""A client and the protocol in which it asked."""


def clients_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["clients"])
    services = context.services

    @router.get("/v1/clients")
    async def list_clients(request: Request) -> Response:
        """Return by client and protocol: turns, ignored fields, and shares of turns that train and that have feedback.

        They are those of the newest `turns` turns. Refused requests, and events that were joined to no turn (by their
        source), are what this process has counted since its start. All are of the caller's namespace."""
        identity = identity_of(request)
        only_parameters(request, "turns")
        limit = whole_number(request, "turns", _TURNS, _MOST_TURNS, least=1)
        turns, told = await read(services, lambda view: _turns(view, identity.namespace, limit))
        return json_response(
            {
                "object": "list",
                "turns": len(turns),
                "since": turns[-1].received_at if turns else None,
                "data": _by_client(turns, told, _refused(identity.namespace)),
                "unjoined": _unjoined(identity.namespace),
            }
        )

    return router


def _turns(view: View, namespace: Namespace, limit: int) -> tuple[list[Served], set[InferenceId]]:
    """Return the newest turns, and those that somebody gave feedback on, or on whose session."""
    turns = view.recent.served(namespace, limit)
    told, sessions = view.recent.heard(
        namespace, [turn.inference_id for turn in turns], {turn.session_id for turn in turns}
    )
    return turns, told | {turn.inference_id for turn in turns if turn.session_id in sessions}


def _by_client(
    turns: Sequence[Served], told: Collection[InferenceId], refused: Mapping[Asker, Mapping[str, int]]
) -> list[dict[str, Any]]:
    groups: dict[Asker, list[Served]] = defaultdict(list)
    for turn in turns:
        groups[turn.client or _UNKNOWN, turn.protocol or _UNKNOWN].append(turn)
    rows = [
        {"client": client, "protocol": protocol, **_shares(groups.get((client, protocol), ()), told)}
        | {"refused": dict(refused.get((client, protocol), {}))}
        for client, protocol in sorted(groups.keys() | refused.keys())
    ]
    return sorted(rows, key=lambda row: -row["turns"])


def _shares(turns: Sequence[Served], told: Collection[InferenceId]) -> dict[str, Any]:
    count = len(turns)
    return {
        "turns": count,
        "trainable_share": sum(turn.trainable for turn in turns) / count if count else None,
        "untrainable": dict(Counter(reason for turn in turns for reason in turn.untrainable_reasons).most_common()),
        "ignored": dict(Counter(field for turn in turns for field in turn.ignored).most_common()),
        "feedback_share": sum(turn.inference_id in told for turn in turns) / count if count else None,
    }


def _refused(namespace: Namespace) -> dict[Asker, dict[str, int]]:
    found: dict[Asker, dict[str, int]] = defaultdict(dict)
    for (whose, client, protocol, code), count in values(REFUSED_REQUESTS).items():
        if whose == namespace:
            found[client, protocol][code] = int(count)
    return found


def _unjoined(namespace: Namespace) -> dict[str, dict[str, int]]:
    """Return events that were joined to no turn, by source and reason."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for (whose, source, reason), count in values(UNJOINED_EVENTS).items():
        if whose == namespace:
            found[source][reason] = int(count)
    return found
