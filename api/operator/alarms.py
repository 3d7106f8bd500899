"""The routes of `/v1/alarms`: the alarms that monitors opened, and what operators say of them."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import body_of, identity_of, json_body, json_response, only_parameters, whole_number
from api.access.services import ApiServices
from api.access.trail import Note, note_of
from api.http.background import on_a_thread
from api.turns.lookup import read
from core.errors import Conflict, InvalidRequest, NotFound
from core.operations.alarm_advice import ADVICE, page_of
from core.operations.alarms import StoredAlarm
from core.store.work import Work

_LARGEST_PAGE = 1000
_DEFAULT_LIMIT = 100
_LARGEST_SEQUENCE = (1 << 63) - 1


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/alarms/{alarm_id}/ack`."""

    note: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")] | None = None


class UnackBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/alarms/{alarm_id}/unack`: an object without fields."""


ack_decoder = msgspec.json.Decoder(AckBody)
unack_decoder = msgspec.json.Decoder(UnackBody)
_Change = Callable[[Work], StoredAlarm | None]
"""What an operator's word makes of an alarm, or None if that cannot be because the alarm is closed."""


def alarms_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["alarms"])
    services = context.services
    _word_routes(router, context)

    @router.get("/v1/alarms")
    async def list_alarms(request: Request) -> Response:
        """Return alarms that are not closed, the newest first; with `state=all` closed ones too.

        `advice` says what an operator does about it, and `docs` where the documentation has more, below this service's
        address. `next` is the `before` of the next page, null where there is none.
        A key with the scope admin sees those of all namespaces."""
        identity = identity_of(request)
        only_parameters(request, "state", "before", "limit")
        only_open = _only_open(request)
        before = whole_number(request, "before", _LARGEST_SEQUENCE, _LARGEST_SEQUENCE)
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1)
        namespace = None if "admin" in identity.scopes else identity.namespace
        page = await read(services, lambda view: view.alarms.newest(namespace, before, limit + 1, only_open=only_open))
        shown, rest = page[:limit], page[limit:]
        following = shown[-1].sequence if shown and rest else None
        return json_response({"alarms": [described(alarm) for alarm in shown], "next": following})

    return router


def _word_routes(router: APIRouter, context: ApiContext) -> None:
    services = context.services

    @router.post(
        "/v1/alarms/{alarm_id}/ack",
        openapi_extra=json_body(AckBody, "An optional note"),
        summary="Acknowledge an alarm: releases that it held go on. A second time changes nothing",
        operation_id="acknowledge_alarm",
    )
    async def acknowledge(request: Request, alarm_id: str) -> Response:
        identity = identity_of(request)
        body = await body_of(context, request, ack_decoder)

        def change(work: Work) -> StoredAlarm | None:
            alarm = work.alarms.acknowledge(alarm_id, identity.by, body.note, services.clock.now())
            return None if alarm is None or alarm.acknowledged_at is None else alarm

        alarm = await on_a_thread(_changed, services, alarm_id, identity, change, note_of(request))
        return json_response(described(alarm))

    @router.post(
        "/v1/alarms/{alarm_id}/unack",
        openapi_extra=json_body(UnackBody, "Nothing: an empty object"),
        summary="Take an alarm's acknowledgement back: it holds again what it held. A second time changes nothing",
        operation_id="unacknowledge_alarm",
    )
    async def unacknowledge(request: Request, alarm_id: str) -> Response:
        identity = identity_of(request)
        await body_of(context, request, unack_decoder)

        def change(work: Work) -> StoredAlarm | None:
            alarm = work.alarms.reopen(alarm_id)
            return None if alarm is None or alarm.state == "closed" else alarm

        alarm = await on_a_thread(_changed, services, alarm_id, identity, change, note_of(request))
        return json_response(described(alarm))


def _only_open(request: Request) -> bool:
    state = request.query_params.get("state", "open")
    if state not in ("open", "all"):
        raise InvalidRequest("state: must be open or all", param="state")
    return state == "open"


def _changed(services: ApiServices, alarm_id: str, identity: Identity, change: _Change, note: Note) -> StoredAlarm:
    with services.store.work() as work:
        known = work.alarms.get(alarm_id)
        if known is None or not may_see(identity, known):
            raise NotFound(
                f"no alarm {alarm_id}; GET /v1/alarms?state=all lists them", param="alarm_id", code="unknown_alarm"
            )
        note.add(known.opening.namespace)
        alarm = change(work)
        if alarm is None:
            raise Conflict(f"alarm {alarm_id} is closed", param="alarm_id", code="alarm_closed")
        note.write(work)
    return alarm


def may_see(identity: Identity, alarm: StoredAlarm) -> bool:
    """Return whether an alarm is the caller's to see, and to acknowledge where it has the scope for that."""
    return "admin" in identity.scopes or alarm.opening.namespace == identity.namespace


def described(alarm: StoredAlarm) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(alarm.opening)
    moments = {"acknowledged_at": alarm.acknowledged_at, "closed_at": alarm.closed_at}
    return {
        **fields,
        "advice": ADVICE.get(alarm.opening.monitor),
        "docs": page_of(alarm.opening.monitor),
        "state": alarm.state,
        **msgspec.to_builtins(moments),
        "acknowledged_by": alarm.acknowledged_by,
        "note": alarm.note,
        "sequence": alarm.sequence,
    }
