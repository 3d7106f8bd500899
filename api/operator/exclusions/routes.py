"""The routes of `/v1/exclusions`: orders to exclude turns from learning, with a preview, and to include them again."""

import asyncio
import logging
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from api.access.context import Context
from api.access.identity import Identity
from api.access.plain import (
    LARGEST_INTEGER,
    body_of,
    digits,
    identity_of,
    json_body,
    json_response,
    only_parameters,
    whole_number,
)
from api.access.trail import Note, note_of
from api.operator.exclusions.body import ExclusionBody, ExclusionPreviewBody, LiftBody, selection_of
from api.operator.exclusions.preview import NEEDS_ADMIN, foresee
from api.turns.lookup import read
from core.codec import to_builtins
from core.errors import Conflict, Forbidden, NotFound
from core.ids import Namespace
from core.operations.exclusions import Exclusion
from core.store.work import View

_LARGEST_PAGE = 1000
_DEFAULT_LIMIT = 100
_MOST_SHOWN = 20  # of an order's turns: it may be thousands
logger = logging.getLogger(__name__)

preview_decoder = msgspec.json.Decoder(ExclusionPreviewBody)
exclusion_decoder = msgspec.json.Decoder(ExclusionBody)
lift_decoder = msgspec.json.Decoder(LiftBody)


def exclusions_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["exclusions"])
    services = context.services

    @router.get("/v1/exclusions")
    async def list_exclusions(request: Request) -> Response:
        """Return orders to exclude turns, the newest first: who gave each, when, why, and how far it is obeyed.

        A key with the scope admin sees those of all namespaces."""
        identity = identity_of(request)
        only_parameters(request, "limit")
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE)

        def look(view: View) -> list[dict[str, Any]]:  # described on the thread, too: an order may name 100,000 turns
            return [described(each) for each in view.exclusions.newest(_reach(identity), limit)]

        return json_response({"object": "list", "data": await read(services, look)})

    @router.post(
        "/v1/exclusions/preview",
        openapi_extra=json_body(ExclusionPreviewBody, "What to exclude"),
        summary="Say what an order to exclude turns would change. Changes nothing",
        operation_id="preview_exclusion",
    )
    async def preview(request: Request) -> Response:
        identity = identity_of(request)
        body = await body_of(context, request, preview_decoder)

        def look() -> dict[str, Any]:
            with services.store.look() as view:
                selection = selection_of(context, view, identity, body)
                return foresee(view, services.blobs, services.clock, services.cluster, selection)

        return json_response(await asyncio.to_thread(look))

    @router.post(
        "/v1/exclusions",
        openapi_extra=json_body(ExclusionBody, "What to exclude, and why"),
        summary="Exclude turns from learning, and unlearn what was learned from them",
        operation_id="exclude_turns",
    )
    async def exclude(request: Request) -> Response:
        identity = identity_of(request)
        body = await body_of(context, request, exclusion_decoder)
        given = await asyncio.to_thread(_give, context, identity, body, note_of(request))
        logger.warning("%s excludes turns from learning, by order %d: %s", given.by, given.exclusion_id, given.why)
        return json_response(described(given), 202)

    _lift_route(router, context)
    return router


def _lift_route(router: APIRouter, context: Context) -> None:
    @router.post(
        "/v1/exclusions/{exclusion_id}/lift",
        openapi_extra=json_body(LiftBody, "Why"),
        summary="Include again what an order excluded, for all that is rewarded from now on",
        operation_id="lift_exclusion",
    )
    async def lift(request: Request, exclusion_id: str) -> Response:
        identity = identity_of(request)
        body = await body_of(context, request, lift_decoder)
        lifted = await asyncio.to_thread(_lift, context, identity, exclusion_id, body.why, note_of(request))
        logger.warning("%s lifts order %s to exclude turns: %s", identity.by, exclusion_id, body.why)
        return json_response(described(lifted))


def _give(context: Context, identity: Identity, body: ExclusionBody, note: Note) -> Exclusion:
    services = context.services
    if services.is_edge:
        raise Conflict(
            f"clusters.role is edge: {services.cluster} does not learn; exclude turns at home, which does",
            code="given_at_home",
        )
    with services.store.look() as view:
        selection = selection_of(context, view, identity, body)
        if "admin" not in identity.scopes:
            foreseen = foresee(view, services.blobs, services.clock, services.cluster, selection)
            if foreseen["needs_admin"]:
                raise Forbidden(NEEDS_ADMIN, code="missing_scope")
    with services.store.work() as work:
        number = work.exclusions.give(selection, body.why, identity.by, services.clock.now())
        given = work.exclusions.get(number)
        note.write(work, selection.namespace, exclusion_id=number)
    assert given is not None, "it was written in this transaction"
    return given


def _lift(context: Context, identity: Identity, exclusion_id: str, why: str, note: Note) -> Exclusion:
    services, number = context.services, digits(exclusion_id, LARGEST_INTEGER)
    with services.store.work() as work:
        known = None if number is None else work.exclusions.get(number)
        if known is None or _reach(identity) not in (None, known.selection.namespace):
            raise NotFound(
                f"no exclusion {exclusion_id}; GET /v1/exclusions lists them",
                param="exclusion_id",
                code="unknown_exclusion",
            )
        if (consent := work.consents.standing_on(known.exclusion_id)) is not None:
            raise Conflict(
                f"exclusion {exclusion_id} stands for what a {consent.kind} allows: "
                f"PUT /v1/{consent.kind}s/…/consent changes that",
                param="exclusion_id",
                code="consent_holds",
            )
        if not work.exclusions.lift(known.exclusion_id, why, identity.by, services.clock.now()):
            raise Conflict(f"exclusion {exclusion_id} is lifted already", param="exclusion_id", code="exclusion_lifted")
        lifted = work.exclusions.get(known.exclusion_id)
        note.write(work, known.selection.namespace)
    assert lifted is not None, "orders are never deleted"
    return lifted


def _reach(identity: Identity) -> Namespace | None:
    """Return the namespace whose orders a key reaches; None: all of them."""
    return None if "admin" in identity.scopes else identity.namespace


def described(exclusion: Exclusion) -> dict[str, Any]:
    fields: dict[str, Any] = to_builtins(exclusion)
    selection = fields["selection"]
    turns = selection.get("turns", ())
    if turns:
        selection |= {"turns": turns[:_MOST_SHOWN], "turns_selected": len(turns)}
    return {**fields, "state": _state(exclusion)}


def _state(exclusion: Exclusion) -> str:
    if exclusion.lifted_at is not None:
        return "lifted"
    if exclusion.is_failed:
        return "failed"
    if exclusion.relearning is None:
        return "ordered"
    return "done" if exclusion.is_obeyed else "relearning"
