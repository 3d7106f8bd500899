"""The route `GET /v1/outcomes`: what feedback may be about, by name."""

from typing import Any

from fastapi import APIRouter, Response

from api.access.context import Context
from api.access.plain import json_response
from core.reward_spec import OutcomeSpec


def outcomes_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["feedback"])
    outcomes = context.services.spec.outcomes

    @router.get("/v1/outcomes")
    async def list_outcomes() -> Response:
        """Return the outcomes of the reward spec: the names that `metric_name` may have, and what each of them takes.

        `level` is what it is about: an inference, a session, or null for either; `role` what it says of an answer."""
        return json_response({"data": [_described(name, outcomes[name]) for name in sorted(outcomes)]})

    return router


def _described(name: str, outcome: OutcomeSpec) -> dict[str, Any]:
    return {
        "name": name,
        "type": outcome.type,
        "level": outcome.level,
        "role": outcome.role_as(name),
        "minimum": outcome.minimum,
        "maximum": outcome.maximum,
        "measure": outcome.measure,
        "wait_s": outcome.wait_s,
    }
