"""What one piece of feedback says, and the outcome that it becomes once it is known to be well formed."""

from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from api.access.context import ApiContext
from api.access.identity import Identity
from api.feedback.measures import LONGEST_SNAPSHOT, MeasuredFeedback, check_measured, demonstrated, measured
from api.feedback.targets import NamedTurn
from api.feedback.values import check_level, check_value
from api.turns.answer_ids import inference_of
from api.turns.intake import check_id
from core.errors import InvalidRequest
from core.events import Outcome, TokenRange, ToolCallTarget
from core.ids import RESERVED, InferenceId, OutcomeId, SessionId, is_uuid, new_outcome_id

MOST_VALUES = 64
"""More JSON values than one report can have, each tag and each number of a range counted."""
_LONGEST_USER = 16_384
_MOST_TOKENS = 1 << 31
_TEXTS = ("final_text", "diff", "snapshot")
Text = Annotated[str, Meta(max_length=512)]


class FeedbackBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/feedback`.

    It names an inference, by its id or by that of its answer, or a session, and maybe the `user` whose feedback it is,
    as in chat; `metric_name` is an outcome of the reward spec. Instead of a `value` it may have one of `final_text`,
    `diff` (unified, of the suggested text) and `snapshot`, where the metric has a `measure`: the value is computed, and
    the text kept as `evidence`. With `learn` false neither its words nor its text teach anything; the number counts."""

    feedback_id: Text | None = None
    inference_id: Text | None = None
    session_id: Text | None = None
    user: Annotated[str, Meta(max_length=_LONGEST_USER)] | None = None
    metric_name: Text
    value: bool | float | str | msgspec.UnsetType = msgspec.UNSET
    final_text: str | None = None
    diff: str | None = None
    snapshot: str | None = None
    tags: Annotated[dict[Text, Text], Meta(max_length=16)] | None = None
    supersedes: Text | None = None
    target_range: TokenRange | None = None
    tool_call_id: Text | None = None
    observed_at: Annotated[datetime, Meta(tz=True)] | None = None
    evidence: Annotated[str, Meta(max_length=LONGEST_SNAPSHOT)] | None = None
    source: Literal["client", "user", "environment", "judge"] = "client"
    learn: bool = True


feedback_decoder = msgspec.json.Decoder(FeedbackBody)


def check_body(context: ApiContext, body: FeedbackBody) -> None:
    """Raise InvalidRequest for a wrong field."""
    if (body.inference_id is None) == (body.session_id is None):
        raise InvalidRequest("inference_id: name an inference or a session, one of them", param="inference_id")
    check_level(context.services.spec, body.metric_name, of_session=body.inference_id is None)
    for name in ("feedback_id", "session_id", "supersedes"):
        if getattr(body, name) is not None:
            check_id(getattr(body, name), name)
    span = body.target_range
    if span is not None and not 0 <= span.start < span.end <= _MOST_TOKENS:  # larger ones no log could hold
        raise InvalidRequest("target_range: from 0, and not empty", param="target_range")
    if body.feedback_id is not None and body.feedback_id.startswith(RESERVED):
        what = f"feedback_id: ids that begin with {', '.join(RESERVED)} are given by the service"
        raise InvalidRequest(what, param="feedback_id", code="reserved_id")


async def said_by(context: ApiContext, identity: Identity, body: FeedbackBody, named: NamedTurn) -> MeasuredFeedback:
    """Return the given value, or the one computed from the text that is there instead, and which edits that text is."""
    services = context.services
    texts = [name for name in _TEXTS if getattr(body, name) is not None]
    if isinstance(body.value, msgspec.UnsetType) != (len(texts) == 1):
        field = texts[-1] if texts else "value"
        raise InvalidRequest(f"{field}: give a value, or one of {', '.join(_TEXTS)}", param=field)
    if not isinstance(body.value, msgspec.UnsetType):
        check_value(services.spec, body.metric_name, body.value)
        if services.spec.roles.get(body.metric_name) == "demonstration" and named.inference_id is not None:
            return await demonstrated(context, identity, named, body.tool_call_id, str(body.value))
        return MeasuredFeedback(body.value)
    (field,), text = texts, getattr(body, texts[0])
    measure = check_measured(services.spec, body.metric_name, field, text)
    if body.inference_id is None or not is_uuid(body.inference_id):
        raise InvalidRequest(f"{field}: only for an inference", param=field)
    if body.evidence is not None:
        raise InvalidRequest(f"evidence: leave it out, since {field} is the evidence", param="evidence")
    return await measured(context, identity, named, body.tool_call_id, field, text, measure)


def outcome_of(context: ApiContext, identity: Identity, body: FeedbackBody, said: MeasuredFeedback) -> Outcome:
    now = context.services.clock.now()
    inference_id, session_id = subject_of(body)
    return Outcome(
        outcome_id=new_outcome_id() if body.feedback_id is None else OutcomeId(body.feedback_id),
        inference_id=inference_id,
        session_id=session_id,
        namespace=identity.namespace,
        user_id=context.keys.user_of(identity, body.user),
        key_id=identity.key_id,
        name=body.metric_name,
        value=said.value,
        edits=said.edits,
        target_range=body.target_range,
        target_call=None if body.tool_call_id is None else ToolCallTarget(tool_call_id=body.tool_call_id),
        evidence=next((text for name in ("evidence", *_TEXTS) if (text := getattr(body, name)) is not None), None),
        source=body.source,
        observed_at=now if body.observed_at is None else check_time(context, body.observed_at),
        received_at=now,
        supersedes=None if body.supersedes is None else OutcomeId(body.supersedes),
        tags=body.tags or {},
        learn=body.learn,
    )


def subject_of(body: FeedbackBody) -> tuple[InferenceId | None, SessionId | None]:
    """Return the inference or the session that the feedback is about, the same however it names the inference."""
    inference_id = None if body.inference_id is None else inference_of(body.inference_id)
    return inference_id, None if body.session_id is None else SessionId(body.session_id)


def check_time(context: ApiContext, at: datetime) -> datetime:
    """Return the moment in UTC. Raises InvalidRequest for one in the future or before the calendar's first year."""
    ahead_s = (at - context.services.clock.now()).total_seconds()
    most_s = context.services.settings.feedback.clock_skew_s
    if ahead_s > most_s:
        message = f"observed_at: {ahead_s:.0f} s ahead of our clock; at most {most_s:g}"
        raise InvalidRequest(message, param="observed_at", code="from_the_future")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest("observed_at: before the first year", param="observed_at") from None
