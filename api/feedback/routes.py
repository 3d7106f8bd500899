"""The routes of `/v1/feedback`: what users make of answers. Idempotent, amendable, and may be withdrawn."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import body_of, identity_of, json_body, json_response, only_parameters
from api.access.quotas.limits import ERRORS, admit
from api.feedback.body import MOST_VALUES, FeedbackBody, feedback_decoder
from api.feedback.kept import describe_feedback, withdraw_feedback
from api.feedback.recording import record_feedback
from core.errors import RequestError, Unavailable
from core.ids import OutcomeId


def feedback_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["feedback"])

    @router.post("/v1/feedback", openapi_extra=json_body(FeedbackBody, "What somebody made of a turn or a session"))
    async def post_feedback(request: Request) -> Response:
        """Record what became of an inference or a session, from the first chunk of its answer on.

        A retry with the same `feedback_id` and content gets the same answer; other content 409. The status is 202
        when it is not known yet whether the inference exists, or the part of it that is named, or whether the same id
        was given to other content at the same moment."""
        return await _limited(context, request, lambda identity: _post(context, identity, request))

    @router.get("/v1/feedback/{feedback_id:path}")
    async def get_feedback(request: Request, feedback_id: str) -> Response:
        """Return the feedback's content, whether it still counts, and what superseded it."""
        only_parameters(request)
        return await _limited(context, request, lambda identity: _get(context, identity, OutcomeId(feedback_id)))

    @router.delete("/v1/feedback/{feedback_id:path}")
    async def delete_feedback(request: Request, feedback_id: str) -> Response:
        """Withdraw feedback. Doing so again gets the same answer."""
        only_parameters(request)
        return await _limited(context, request, lambda identity: _withdraw(context, identity, OutcomeId(feedback_id)))

    return router


async def _limited(
    context: ApiContext, request: Request, answer: Callable[[Identity], Awaitable[Response]]
) -> Response:
    identity = identity_of(request)
    live_state = context.services.live_state
    try:
        limits = await admit(live_state, identity)
        response = await answer(identity)
    except (RequestError, Unavailable):
        live_state.count(identity.namespace, ERRORS)
        raise
    response.raw_headers += limits
    return response


async def _post(context: ApiContext, identity: Identity, request: Request) -> Response:
    body = await body_of(context, request, feedback_decoder, MOST_VALUES)
    recorded = await record_feedback(context, identity, body)
    status = "pending" if recorded.pending else "recorded"
    return json_response({"feedback_id": recorded.outcome_id, "status": status}, 202 if recorded.pending else 200)


async def _get(context: ApiContext, identity: Identity, outcome_id: OutcomeId) -> Response:
    return json_response(await describe_feedback(context, identity, outcome_id))


async def _withdraw(context: ApiContext, identity: Identity, outcome_id: OutcomeId) -> Response:
    await withdraw_feedback(context, identity, outcome_id)
    return json_response({"feedback_id": outcome_id, "status": "withdrawn"})
