"""The route `POST /v1/feedback/batch`: several reports in one request, each answered as it would be alone.

Reports on one turn or session are recorded in the order they are in, since one may supersede another; those on
different ones side by side."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import body_of, identity_of, json_body, json_response
from api.access.quotas.limits import ERRORS, admit
from api.feedback.body import MOST_VALUES, FeedbackBody, feedback_decoder, subject_of
from api.feedback.recording import record_feedback
from api.feedback.side_by_side import in_slices, side_by_side
from api.http.decoding import decode_body
from api.http.errors import describe
from core.errors import InvalidRequest, RequestError, Unavailable
from core.telemetry import REQUEST_ERRORS


class FeedbackBatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/feedback/batch`: at most `api.feedback.batch_items` reports."""

    feedback: list[FeedbackBody]


class _Batch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A batch whose reports are not read yet, so that one which is wrong spoils no other."""

    feedback: list[msgspec.Raw]


_decoder = msgspec.json.Decoder(_Batch)
Answer = dict[str, Any]


def batch_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["feedback"])

    @router.post("/v1/feedback/batch", openapi_extra=json_body(FeedbackBatch, "What somebody made of several answers"))
    async def post_feedback_batch(request: Request) -> Response:
        """Record several reports, and return for each, in order, the HTTP `status` that it would have had alone.

        Beside it stands `feedback_id` or `error`. Each counts against the limits as one request. A report with a
        `feedback_id` may be sent again; `retry` is true of those that should be."""
        most = context.services.settings.feedback.batch_items
        batch = await body_of(context, request, _decoder, (most + 1) * MOST_VALUES)
        if not 0 < len(batch.feedback) <= most:
            raise InvalidRequest(f"feedback: 1 to {most} reports, not {len(batch.feedback)}", param="feedback")
        return json_response({"data": await _record_all(context, identity_of(request), batch.feedback)})

    return router


async def _record_all(context: ApiContext, identity: Identity, reports: list[msgspec.Raw]) -> list[Answer]:
    bodies = [_decoded(raw, place) async for place, raw in in_slices(enumerate(reports))]
    subjects = [None if isinstance(body, RequestError) else subject_of(body) for body in bodies]
    return await side_by_side(identity.caller, subjects, lambda place: _answer(context, identity, bodies[place]))


def _decoded(raw: msgspec.Raw, place: int) -> FeedbackBody | RequestError:
    try:
        return decode_body(feedback_decoder, bytes(raw))
    except RequestError as error:
        error.message = f"feedback[{place}]: {error.message}"
        return error


async def _answer(context: ApiContext, identity: Identity, body: FeedbackBody | RequestError) -> Answer:
    live_state = context.services.live_state
    try:
        await admit(live_state, identity)
        if isinstance(body, RequestError):
            raise body
        recorded = await record_feedback(context, identity, body)
    except (RequestError, Unavailable) as error:
        live_state.count(identity.namespace, ERRORS)
        status, said = describe(error)
        REQUEST_ERRORS.labels(str(status)).inc()
        return {"status": status, "error": said, "retry": status in (429, 503)}
    return {"status": 202 if recorded.pending else 200, "feedback_id": recorded.outcome_id}
