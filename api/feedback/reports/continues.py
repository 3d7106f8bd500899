"""The route `POST /v1/continue/data`: the development data of Continue, whose `data` setting names it as destination.

https://docs.continue.dev/customize/deep-dives/development-data; `core/data/log.ts` of github.com/continuedev/continue
sends it, and `packages/config-yaml/src/schemas/data` has the shapes. Continue has ids of its own, which are none of
ours: what it logs is joined by the id of a tool call, or by the exact words of the answer where one answer had them."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import foreign_body_of, identity_of, json_body, json_response, told_ignored
from api.access.quotas.limits import admit
from api.feedback.reports.joining import Clues, Joining, Unjoined
from api.feedback.reports.links import LONGEST_NAME, Link, link
from api.feedback.reports.report import ReportedOutcome, count_unjoined, digest_of, take_reports, told

_SOURCE, _BAD_TIME = "continue", "bad_time"
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
Said = Iterator[tuple[str, bool]]
"""Outcomes with their values."""
Data = Mapping[str, Any]


class ContinueData(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One event. `data` has the fields of its `name` in that `schema`, without code at the `level` noCode."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    data: dict[str, Any]
    schema: str | None = None
    level: str | None = None
    profileId: str | None = None  # as Continue writes it


_decoder = msgspec.json.Decoder(ContinueData)


def continue_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["feedback"])

    @router.post("/v1/continue/data", openapi_extra=json_body(ContinueData, "An event of Continue's development data"))
    async def post_continue_data(request: Request) -> Response:
        """Record what users did in Continue, and return a `status`.

        It is `recorded`, `linked`, `unjoined` with a `reason`, or `ignored`: of events that say nothing of what became
        of an answer nothing is kept."""
        event, unknown = await foreign_body_of(context, request, _decoder)
        response = json_response(await _take(context, identity_of(request), event))
        response.headers.update(told_ignored(unknown))
        return response

    return router


async def _take(context: ApiContext, identity: Identity, event: ContinueData) -> dict[str, Any]:
    outcomes = list(_READ.get(event.name, _nothing)(event.data))
    at = _moment(event.data, context.services.clock.now())
    if at is None:
        for _ in outcomes:
            count_unjoined(identity.namespace, _SOURCE, _BAD_TIME)
        return {"status": "unjoined", "reason": _BAD_TIME} if outcomes else {"status": "ignored"}
    if event.name == "chatInteraction":
        return await _link(context, identity, event.data, at)
    if not outcomes:
        return {"status": "ignored"}
    await admit(context.services.live_state, identity)  # what is looked for costs a look, also where it is not found
    digest = await context.aside.run(identity.caller, partial(digest_of, [event.name, event.data]))
    clues = _clues(event.data, at)
    reports = [
        ReportedOutcome(source=_SOURCE, metric=metric, value=value, clues=clues, digest=digest)
        for metric, value in outcomes
    ]
    reasons = await take_reports(context, identity, reports, admitted=True)
    why = [reason for reason in reasons if reason is not None]
    for reason in why:
        count_unjoined(identity.namespace, _SOURCE, reason)
    if why:
        return {"status": "unjoined", "reason": told(identity, why[0])}
    return {"status": "recorded"}


async def _link(context: ApiContext, identity: Identity, data: Data, at: datetime) -> dict[str, Any]:
    """Learn which session of ours Continue's is, from an answer that both know."""
    conversation = _name(data, "sessionId")
    await admit(context.services.live_state, identity)
    clues = _clues(data, at)
    try:
        joined = await Joining(context, identity, [clues]).join(clues)
    except Unjoined:
        return {"status": "ignored"}
    if conversation and joined.inference_id is not None:
        await link(context, identity, [Link(answers=(joined.inference_id,), within=conversation)])
    return {"status": "linked"}


def _clues(data: Data, at: datetime) -> Clues:
    return Clues(
        answers=tuple(filter(None, (_name(data, "completionId"),))),
        tool_call=_name(data, "toolCallId"),
        text=_text(data, "completion"),
        prompt=_text(data, "prompt"),
        at=at,
    )


def _text(data: Data, name: str) -> str | None:
    value = data.get(name)
    return value if isinstance(value, str) and value else None


def _name(data: Data, name: str) -> str | None:
    text = _text(data, name)
    return None if text is None or len(text) > LONGEST_NAME else text


def _moment(data: Data, now: datetime) -> datetime | None:
    """Return when it happened, by Continue's clock where that is not ahead of ours; None for no time since 1970.

    It is now where Continue does not say."""
    said = data.get("timestamp")
    if said is None:
        return now
    try:
        at = datetime.fromisoformat(said)
        at = at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(now, at) if at >= _FIRST else None


# ------------------------------------------------------------------------------------------------ what events say


def _autocomplete(data: Data) -> Said:
    """Read what became of a suggestion that was shown; others are not logged.

    `accepted` is false where nothing followed for ten seconds. That is to be ignored, which the reward spec counts by
    itself; it is no refusal."""
    if isinstance(data.get("accepted"), bool):
        yield "shown", True
        if data["accepted"]:
            yield "accepted", True


def _verdict(data: Data) -> Said:
    if isinstance(data.get("accepted"), bool):
        yield ("accepted" if data["accepted"] else "rejected"), True


def _feedback(data: Data) -> Said:
    if isinstance(data.get("feedback"), bool):
        yield "answer_useful", data["feedback"]


def _nothing(_: Data) -> Said:
    return iter(())


_READ: dict[str, Callable[[Data], Said]] = {
    "autocomplete": _autocomplete,
    "editOutcome": _verdict,
    "nextEditOutcome": _verdict,
    "toolUsage": _verdict,
    "chatFeedback": _feedback,
}
