"""The other routes of Tabby's protocol: what serves, what plugins may send elsewhere, and what users did.

`view`, `select` and `dismiss` of a suggestion are its outcomes `shown`, `accepted` and `rejected`."""

import os
import platform
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import (
    LARGEST_INTEGER,
    foreign_body_of,
    identity_of,
    json_body,
    json_response,
    only_parameters,
    told_ignored,
)
from api.access.quotas.limits import admit
from api.feedback.reports.joining import Clues
from api.feedback.reports.report import ReportedOutcome, count_unjoined, digest_of, take_reports
from api.feedback.targets import NamedTurn
from api.turns.answer_ids import inference_in
from core.errors import InvalidRequest, NotFound
from core.ids import InferenceId, is_uuid

VERSION: Final = "v0.30.0"
"""The version of Tabby whose protocol this is; its plugins ask less of older ones."""
_SHARE, _SOURCE = "partially_accepted", "tabby"


class TabbyEvent(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /tabby/v1/events`: what became of a suggestion.

    `elapsed` is in ms, and kept as the tag `elapsed_ms`; `select_kind` is set where the user took the first line
    alone."""

    type: Literal["view", "select", "dismiss"]
    completion_id: Annotated[str, Meta(min_length=1, max_length=128)]
    choice_index: int
    view_id: Annotated[str, Meta(max_length=256)] | None = None
    elapsed: Annotated[int, Meta(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)] | None = None
    select_kind: Literal["line"] | None = None


_decoder = msgspec.json.Decoder(TabbyEvent)


def tabby_router(context: ApiContext) -> APIRouter:
    router = APIRouter(prefix="/tabby", tags=["tabby"])

    @router.get("/v1/health")
    async def tabby_health(request: Request) -> Response:
        """Return what serves, as Tabby's plugins ask before anything else."""
        only_parameters(request)
        return json_response(_health(context.services.model_name))

    @router.get("/v1beta/server_setting")
    async def tabby_server_setting(request: Request) -> Response:
        """Return what plugins are to do: to send nothing of their users to Tabby's makers."""
        only_parameters(request)
        return json_response({"disable_client_side_telemetry": True})

    @router.post("/v1/events", openapi_extra=json_body(TabbyEvent, "What became of a suggestion"))
    async def tabby_event(request: Request) -> Response:
        """Record that a suggestion was shown, taken or turned down. Sent again, it counts once."""
        only_parameters(request, "select_kind")
        event, unknown = await foreign_body_of(context, request, _decoder)
        if event.choice_index != 0:
            raise InvalidRequest("choice_index: a suggestion has one choice, 0", param="choice_index")
        await _record(context, identity_of(request), event, request.query_params.get("select_kind"))
        return Response(status_code=200, headers=told_ignored(unknown))

    return router


def _health(model: str) -> dict[str, Any]:
    return {
        "model": model,
        "chat_model": None,
        "chat_device": None,
        "device": "cpu",
        "arch": platform.machine(),
        "cpu_info": platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count() or 1,
        "cuda_devices": [],
        "version": {"build_date": "", "build_timestamp": "", "git_sha": "", "git_describe": VERSION},
        "webserver": None,
    }


async def _record(context: ApiContext, identity: Identity, event: TabbyEvent, kind: str | None) -> None:
    """Record the event. Raises NotFound for a suggestion that nobody made, and as `POST /v1/feedback` does."""
    await admit(context.services.live_state, identity)
    metric, value = await _outcome(context, identity, event, kind or event.select_kind)
    report = ReportedOutcome(
        source=_SOURCE,
        metric=metric,
        value=value,
        clues=Clues(answers=(event.completion_id,), at=context.services.clock.now()),
        digest=digest_of([event.completion_id, event.type, event.view_id, kind or event.select_kind]),
        tags={} if event.elapsed is None else {"elapsed_ms": str(event.elapsed)},
    )
    (reason,) = await take_reports(context, identity, [report], admitted=True)
    if reason is not None:
        count_unjoined(identity.namespace, _SOURCE, reason)
    if reason in ("unknown_id", "unknown_inference"):
        raise NotFound(f"no completion {event.completion_id}", param="completion_id", code="unknown_inference")
    if reason is not None:
        raise InvalidRequest(f"type: {event.type} became no outcome: {reason}", param="type", code=reason)


async def _outcome(
    context: ApiContext, identity: Identity, event: TabbyEvent, kind: str | None
) -> tuple[str, bool | float]:
    if event.type == "view":
        return "shown", True
    if event.type == "dismiss":
        return "rejected", True
    if kind != "line":
        return "accepted", True
    return await _first_line_taken(context, identity, event.completion_id)


async def _first_line_taken(context: ApiContext, identity: Identity, completion_id: str) -> tuple[str, bool | float]:
    """Return which share of the suggestion its first line is, in characters; where it is not stored, that it was taken.

    Raises NotFound, StoreUnavailable."""
    own = inference_in(completion_id).lower()
    named = NamedTurn(context.services, identity.namespace, InferenceId(own) if is_uuid(own) else None)
    turn = await named.load()
    if turn is None:
        raise NotFound(f"no completion {completion_id}", param="completion_id", code="unknown_inference")
    if turn.unstored is not None:
        return "accepted", True
    first, _, _ = turn.text.lstrip("\n").partition("\n")
    return _SHARE, len(first) / len(turn.text.lstrip("\n")) if first else 0.0
