"""The route `GET /v1/outcomes`: what feedback may be about, by name."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
from api.access.plain import json_answer, json_response, only_parameters
from core.reward_spec import Measure, OutcomeSpec, OutcomeType, Role


class OutcomeInfo(msgspec.Struct, kw_only=True):
    """One outcome of the reward spec: what feedback with its name says, and what it takes."""

    name: Annotated[str, Meta(description="The `metric_name` of feedback.")]
    type: Annotated[OutcomeType, Meta(description="The type of its `value`.")]
    meaning: Annotated[str | None, Meta(description="What it says, and when to send it; null where the spec has none.")]
    level: Annotated[str | None, Meta(description="It is about an `inference` or a `session`; null: about either.")]
    role: Annotated[Role | None, Meta(description="What it says of an answer, whatever its name.")]
    minimum: Annotated[float | None, Meta(description="The smallest value of a number; null: no bound.")]
    maximum: Annotated[float | None, Meta(description="The largest value of a number; null: no bound.")]
    measure: Annotated[Measure | None, Meta(description="How a value is computed where a text is sent instead.")]
    wait_s: Annotated[float, Meta(description="How long a reward waits for it.")]


class OutcomeList(msgspec.Struct):
    """The outcomes of the reward spec, by name."""

    data: list[OutcomeInfo]


def outcomes_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["feedback"])
    outcomes = context.services.spec.outcomes

    @router.get("/v1/outcomes", openapi_extra=json_answer(OutcomeList, "What feedback may be about"))
    async def list_outcomes(request: Request) -> Response:
        """Return the outcomes of the reward spec: the names that `metric_name` may have, and what each of them takes.

        `meaning` says what it says and when to send it."""
        only_parameters(request)
        return json_response(OutcomeList([_described(name, outcomes[name]) for name in sorted(outcomes)]))

    return router


def _described(name: str, outcome: OutcomeSpec) -> OutcomeInfo:
    return OutcomeInfo(
        name=name,
        type=outcome.type,
        meaning=outcome.meaning,
        level=outcome.level,
        role=outcome.role_as(name),
        minimum=outcome.minimum,
        maximum=outcome.maximum,
        measure=outcome.measure,
        wait_s=outcome.wait_s,
    )
