"""The routes of `/v1/feedback`: what users make of answers. Idempotent, amendable, and may be withdrawn."""

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import Context
from api.access.identity import Identity
from api.access.limits import ERRORS, admit, admit_user
from api.access.plain import body_of, identity_of, json_body, json_response
from api.access.services import ApiServices
from api.feedback.measures import check_measured, measured
from api.feedback.targets import NamedTurn, Subject, check_is_own, check_superseded, check_target, find_subject
from api.feedback.values import check_level, check_value
from api.turns.answer_ids import inference_in
from api.turns.intake import check_id
from api.turns.lookup import look_up, read
from api.turns.session_ids import is_id
from core.errors import (
    Conflict,
    InvalidRequest,
    LogUnavailable,
    NotFound,
    RequestError,
    StoreUnavailable,
    Unavailable,
)
from core.events import Outcome, TokenRange, ToolCallTarget, Topic
from core.ids import InferenceId, OutcomeId, SessionId, is_uuid, new_outcome_id
from core.store.turns import outcome_digest
from core.telemetry import OUTCOMES

_WITHDRAWALS = uuid.UUID("5f0a8c2e-55a5-4f3e-9a55-1f2a2a9b7c11")  # names the ids of withdrawals (RFC 9562, v5)
_TEXTS = ("final_text", "diff", "snapshot")
Text = Annotated[str, Meta(max_length=512)]


class FeedbackBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/feedback`.

    It names an inference, by its id or by that of its answer, or a session, and maybe the `user` whose feedback it is,
    as in chat; `metric_name` is an outcome of the reward spec. Instead of a `value` it may have one of `final_text`,
    `diff` (unified, of the suggested text) and `snapshot`, where the metric has a `measure`: the value is computed, and
    the text kept as
    `evidence`."""

    feedback_id: str | None = None
    inference_id: str | None = None
    session_id: str | None = None
    user: str | None = None
    metric_name: str
    value: bool | float | str | msgspec.UnsetType = msgspec.UNSET
    final_text: str | None = None
    diff: str | None = None
    snapshot: str | None = None
    tags: Annotated[dict[Text, Text], Meta(max_length=16)] | None = None
    supersedes: str | None = None
    target_range: TokenRange | None = None
    tool_call_id: str | None = None
    observed_at: Annotated[datetime, Meta(tz=True)] | None = None
    evidence: str | None = None
    source: Literal["client", "user", "environment", "judge"] = "client"


feedback_decoder = msgspec.json.Decoder(FeedbackBody)


def feedback_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["feedback"])

    @router.post("/v1/feedback", openapi_extra=json_body(FeedbackBody, "What somebody made of a turn or a session"))
    async def post_feedback(request: Request) -> Response:
        """Record what became of an inference or a session.

        A retry with the same `feedback_id` and content gets the same answer; other content 409. The status is 202
        when it is not known yet whether the inference exists, or whether the same id was given to other content at
        the same moment."""
        return await _limited(context, request, lambda identity: _post(context, identity, request))

    @router.get("/v1/feedback/{feedback_id}")
    async def get_feedback(request: Request, feedback_id: str) -> Response:
        """Return the feedback's content, whether it still counts, and what superseded it."""
        return await _limited(context, request, lambda identity: _get(context, identity, OutcomeId(feedback_id)))

    @router.delete("/v1/feedback/{feedback_id}")
    async def delete_feedback(request: Request, feedback_id: str) -> Response:
        """Withdraw feedback. Doing so again gets the same answer."""
        return await _limited(context, request, lambda identity: _withdraw(context, identity, OutcomeId(feedback_id)))

    return router


async def _limited(context: Context, request: Request, answer: Callable[[Identity], Awaitable[Response]]) -> Response:
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


async def _post(context: Context, identity: Identity, request: Request) -> Response:
    body = await body_of(context, request, feedback_decoder)
    if body.inference_id is not None:
        body.inference_id = inference_in(body.inference_id)
    _check(context, body)
    inference_id, session_id = _named(body)
    named = NamedTurn(context.services, identity.namespace, inference_id)
    await _admit_user(context, identity, body, named)
    await check_is_own(context.services, identity, named, session_id)
    outcome = _outcome(context, identity, body, await _value(context, body, named))
    own_id = body.feedback_id is not None
    return await context.background.insist(_record(context, identity, outcome, named, own_id=own_id))


async def _get(context: Context, identity: Identity, outcome_id: OutcomeId) -> Response:
    outcome = await _known(context, identity, outcome_id)
    query = identity.namespace, outcome_id
    successor = await read(context.services, lambda view: view.outcomes.successor(*query))
    return json_response(_described(outcome, successor))


def _check(context: Context, body: FeedbackBody) -> None:
    """Raise InvalidRequest for a wrong field."""
    if (body.inference_id is None) == (body.session_id is None):
        raise InvalidRequest("inference_id: name an inference or a session, one of them", param="inference_id")
    check_level(context.services.spec, body.metric_name, of_session=body.inference_id is None)
    for name in ("feedback_id", "session_id", "supersedes"):
        if getattr(body, name) is not None:
            check_id(getattr(body, name), name)


async def _admit_user(context: Context, identity: Identity, body: FeedbackBody, named: NamedTurn) -> None:
    """Count the feedback against its user's limit. Raises TooManyRequests."""
    services, namespace = context.services, identity.namespace
    per_minute = services.settings.feedback.user_per_minute
    if per_minute is None:
        return
    user: str | None = context.keys.user_of(identity, body.user)
    if user is None and body.inference_id is not None:
        user = await _user_of(named)
    await admit_user(services.live_state, namespace, user or body.session_id or str(body.inference_id), per_minute)


async def _user_of(named: NamedTurn) -> str | None:
    """Return the user that the turn was for, else its session; None where that is not known now."""
    try:
        turn = await named.load()
    except StoreUnavailable:
        return None
    return None if turn is None else turn.user_id or turn.session_id


async def _value(context: Context, body: FeedbackBody, named: NamedTurn) -> bool | float | str:
    """Return the given value, or the one computed from the text that is there instead."""
    services = context.services
    texts = [name for name in _TEXTS if getattr(body, name) is not None]
    if isinstance(body.value, msgspec.UnsetType) != (len(texts) == 1):
        field = texts[-1] if texts else "value"
        raise InvalidRequest(f"{field}: give a value, or one of {', '.join(_TEXTS)}", param=field)
    if not isinstance(body.value, msgspec.UnsetType):
        check_value(services.spec, body.metric_name, body.value)
        return body.value
    (field,), text = texts, getattr(body, texts[0])
    measure = check_measured(services.spec, body.metric_name, field, text)
    if body.inference_id is None or not is_uuid(body.inference_id):
        raise InvalidRequest(f"{field}: only for an inference", param=field)
    if body.evidence is not None:
        raise InvalidRequest(f"evidence: leave it out, since {field} is the evidence", param="evidence")
    return await measured(named, body.tool_call_id, field, text, measure)


def _outcome(context: Context, identity: Identity, body: FeedbackBody, value: bool | float | str) -> Outcome:
    now = context.services.clock.now()
    inference_id, session_id = _named(body)
    return Outcome(
        outcome_id=new_outcome_id() if body.feedback_id is None else OutcomeId(body.feedback_id),
        inference_id=inference_id,
        session_id=session_id,
        namespace=identity.namespace,
        user_id=context.keys.user_of(identity, body.user),
        key_id=identity.key_id,
        name=body.metric_name,
        value=value,
        target_range=body.target_range,
        target_call=None if body.tool_call_id is None else ToolCallTarget(tool_call_id=body.tool_call_id),
        evidence=next((text for name in ("evidence", *_TEXTS) if (text := getattr(body, name)) is not None), None),
        source=body.source,
        observed_at=now if body.observed_at is None else _observed(body.observed_at, now, context),
        received_at=now,
        supersedes=None if body.supersedes is None else OutcomeId(body.supersedes),
        tags=body.tags or {},
    )


def _named(body: FeedbackBody) -> tuple[InferenceId | None, SessionId | None]:
    """Return the inference or the session that the feedback is about."""
    inference_id = None if body.inference_id is None else InferenceId(body.inference_id.lower())
    return inference_id, None if body.session_id is None else SessionId(body.session_id)


def _observed(at: datetime, now: datetime, context: Context) -> datetime:
    """Return the moment in UTC. Raises InvalidRequest for one in the future or before the calendar's first year."""
    ahead_s = (at - now).total_seconds()
    most_s = context.services.settings.feedback.clock_skew_s
    if ahead_s > most_s:
        message = f"observed_at: {ahead_s:.0f} s ahead of our clock; at most {most_s:g}"
        raise InvalidRequest(message, param="observed_at", code="from_the_future")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest("observed_at: before the first year", param="observed_at") from None


async def _record(
    context: Context, identity: Identity, outcome: Outcome, named: NamedTurn, *, own_id: bool
) -> Response:
    """Check the outcome against what is known, then append it; it is durable when this returns.

    `own_id` says that its id is the client's."""
    services, namespace = context.services, outcome.namespace
    digest = outcome_digest(outcome)
    try:
        known = await read(services, lambda view: view.outcomes.get(namespace, outcome.outcome_id)) if own_id else None
        if known is not None:
            return _answer(outcome, known[1], digest)
        subject: Subject = await find_subject(services, outcome, named)
        await check_target(outcome, subject, named)
        await check_superseded(services, identity, outcome)
        answer = _recorded(outcome)
    except StoreUnavailable:
        # Nothing is lost by accepting it unchecked: feedback on an unknown inference is never joined to a turn.
        answer = _pending(outcome)
    if own_id:
        answer = await _append_once(services, outcome, digest, answer)
    else:
        await services.log.append(Topic.TURNS, outcome)
    OUTCOMES.labels(outcome.name).inc()
    return answer


async def _append_once(services: ApiServices, outcome: Outcome, digest: str, answer: Response) -> Response:
    """Append the outcome unless the same id has other content, even at the same moment and at another replica.

    Live state knows, and may forget between any two lines here: so it is asked again afterwards, and where it does
    not know, the store does once the writer has caught up. The first in the log is the one that counts."""
    claim = outcome.namespace, f"feedback:{outcome.outcome_id}", digest
    if await services.live_state.claim(*claim) not in (digest, None):
        raise _other_content(outcome.outcome_id)
    try:
        await services.log.append(Topic.TURNS, outcome)
    except LogUnavailable:
        await services.live_state.release_claim(*claim)
        raise
    if await services.live_state.claim(*claim) == digest:
        return answer
    try:
        known = await look_up(services, lambda view: view.outcomes.get(outcome.namespace, outcome.outcome_id))
    except StoreUnavailable:
        known = None
    return _pending(outcome) if known is None else _answer(outcome, known[1], digest)


def _answer(outcome: Outcome, known_digest: str, digest: str) -> Response:
    """Return the answer for an outcome that is known, or raise Conflict if its content differs."""
    if known_digest != digest:
        raise _other_content(outcome.outcome_id)
    return _recorded(outcome)


def _recorded(outcome: Outcome) -> Response:
    return json_response({"feedback_id": outcome.outcome_id, "status": "recorded"})


def _pending(outcome: Outcome) -> Response:
    return json_response({"feedback_id": outcome.outcome_id, "status": "pending"}, 202)


async def _withdraw(context: Context, identity: Identity, outcome_id: OutcomeId) -> Response:
    services, namespace = context.services, identity.namespace
    outcome = await _known(context, identity, outcome_id)
    if not identity.may_change(outcome):
        raise _unknown(outcome_id)
    successor = await read(services, lambda view: view.outcomes.successor(namespace, outcome_id))
    if successor is not None and not successor.withdrawn:
        raise Conflict(f"{outcome_id} was superseded by {successor.outcome_id}", code="superseded")
    if successor is None:
        now = services.clock.now()
        withdrawal = msgspec.structs.replace(
            outcome,
            outcome_id=OutcomeId(str(uuid.uuid5(_WITHDRAWALS, f"{namespace}\0{outcome_id}"))),
            value=None,
            supersedes=outcome_id,
            withdrawn=True,
            evidence=None,
            key_id=identity.key_id,
            observed_at=now,
            received_at=now,
        )
        await context.background.insist(services.log.append(Topic.TURNS, withdrawal))
    return json_response({"feedback_id": outcome_id, "status": "withdrawn"})


async def _known(context: Context, identity: Identity, outcome_id: OutcomeId) -> Outcome:
    """Return the outcome, waiting for the writer as long as feedback does for an inference.

    Raises NotFound, also for what the caller may not see."""
    found = None
    if is_id(outcome_id):
        found = await look_up(context.services, lambda view: view.outcomes.get(identity.namespace, outcome_id))
    if found is None or found[0].withdrawn or not identity.sees(found[0]):
        raise _unknown(outcome_id)
    return found[0]


def _unknown(outcome_id: OutcomeId) -> NotFound:
    return NotFound(f"no feedback {outcome_id}", param="feedback_id", code="unknown_feedback")


def _described(outcome: Outcome, successor: Outcome | None) -> dict[str, object]:
    content = msgspec.to_builtins(outcome)
    status = "recorded" if successor is None else "withdrawn" if successor.withdrawn else "superseded"
    shown = ("inference_id", "session_id", "value", "target_range", "evidence", "source", "observed_at")
    return {
        "feedback_id": outcome.outcome_id,
        "status": status,
        "successor": None if successor is None or successor.withdrawn else successor.outcome_id,
        "metric_name": outcome.name,
        **{name: content[name] for name in shown},
        "tool_call_id": outcome.target_call and outcome.target_call.tool_call_id,
        "received_at": content["received_at"],
        "supersedes": outcome.supersedes,
        "tags": outcome.tags,
    }


def _other_content(outcome_id: OutcomeId) -> Conflict:
    return Conflict(
        f"feedback_id: {outcome_id} is known with other content; amend with a new id that supersedes it",
        param="feedback_id",
        code="idempotency_conflict",
    )
