"""The routes of erasure: `DELETE /v1/users/{user}`, `DELETE /v1/sessions/{session_id}`, `/v1/erasures`."""

import asyncio
import logging
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

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
from api.operator.erasures.forgetting import forget, know_organisations
from api.operator.erasures.organisations import foresee_organisation, give_organisation
from api.operator.erasures.preview import preview
from api.turns.lookup import read, read_all
from core.codec import to_builtins
from core.errors import Forbidden, InvalidRequest, NotFound, StoreUnavailable
from core.ids import Namespace, SessionId, UserHash
from core.operations.erasures import ErasedKind, Erasure, Foreseen
from core.records.erasure_orders import give, redact_rest
from core.store.work import View

_LARGEST_PAGE, _DEFAULT_LIMIT = 1000, 100
_MOST_WHY = 1000
_WHY = "it was asked for"
_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
logger = logging.getLogger(__name__)


class ErasurePreviewBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/erasures/preview`: a user by name or hash, a session, an organisation by its policy.

    Of a namespace alone it is the whole."""

    user: _Name | None = None
    session: _Name | None = None
    organisation: _Name | None = None
    namespace: _Name | None = None


preview_decoder = msgspec.json.Decoder(ErasurePreviewBody)


def erasures_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["erasures"])
    services = context.services

    @router.delete("/v1/users/{user:path}", summary="Erase all that a user said, from the weights too", status_code=202)
    async def erase_user(request: Request, user: str) -> Response:
        """Order it; query: `namespace`, `why`. While it is in force, it is given again only if more came since."""
        return await _order(context, request, "user", user)

    @router.delete("/v1/sessions/{session_id:path}", summary="Erase a session, from the weights too", status_code=202)
    async def erase_session(request: Request, session_id: str) -> Response:
        """Order it; query: `namespace`, `why`. While it is in force, it is given again only if more came since."""
        return await _order(context, request, "session", session_id)

    @router.delete("/v1/namespaces/{namespace:path}", summary="Erase all that was said in a namespace", status_code=202)
    async def erase_namespace(request: Request, namespace: str) -> Response:
        """Order it; query: `why`. While it is in force, it is given again only if more came since."""
        only_parameters(request, "why")
        return await _order(context, request, "namespace", namespace)

    @router.delete("/v1/organisations/{policy}", summary="Erase an organisation, with its policy", status_code=202)
    async def erase_organisation(request: Request, policy: str) -> Response:
        """Order it; query: `why`. Nobody is answered in its namespaces from then on, and its name is gone for ever."""
        only_parameters(request, "why")
        return await _order_organisation(context, request, policy)

    @router.post(
        "/v1/erasures/preview",
        openapi_extra=json_body(ErasurePreviewBody, "Whose words"),
        summary="Say what an order to erase would remove, and what it costs. Changes nothing",
        operation_id="preview_erasure",
    )
    async def look_ahead(request: Request) -> Response:
        identity = identity_of(request)
        body = await body_of(context, request, preview_decoder)
        if body.organisation is not None:
            identity.require("admin")
            policy = _alone(body)
            return json_response(await read(services, lambda view: foresee_organisation(services, view, policy)))
        namespace = _namespace(identity, body.namespace)
        kind, named = _named(body)

        def look(view: View) -> dict[str, Any]:
            subject = subject_of(context, view, namespace, kind, named)
            return preview(view, services.blobs, services.clock, services.cluster, namespace, kind, subject)

        return json_response(await read(services, look))

    _looking_routes(router, context)
    return router


def _looking_routes(router: APIRouter, context: Context) -> None:
    services = context.services

    @router.get("/v1/erasures")
    async def list_erasures(request: Request) -> Response:
        """Return orders to erase, the newest first; a key with the scope admin sees those of all namespaces."""
        identity = identity_of(request)
        only_parameters(request, "limit")
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE)
        found = await read(services, lambda view: view.erasures.newest(_reach(identity), limit))
        return json_response({"object": "list", "data": [described(each) for each in found]})

    @router.get("/v1/erasures/{erasure_id}")
    async def get_erasure(request: Request, erasure_id: str) -> Response:
        """Return one order: state, progress by place, deadline, and at the end the signed statement."""
        identity, number = identity_of(request), digits(erasure_id, LARGEST_INTEGER)
        only_parameters(request)
        found = None if number is None else await read(services, lambda view: view.erasures.get(number))
        if found is None or _reach(identity) not in (None, found.namespace):
            raise NotFound(f"no erasure {erasure_id}", param="erasure_id", code="unknown_erasure")
        return json_response(await read(services, lambda view: _with_progress(view, found)))


async def _order(context: Context, request: Request, kind: ErasedKind, named: str) -> Response:
    identity = identity_of(request)
    only_parameters(request, "namespace", "why")
    whole = named if kind == "namespace" else None
    namespace = _namespace(identity, request.query_params.get("namespace", whole))
    why = _why(request)
    asked_at, behind = context.services.clock.now(), None
    try:
        await read_all(context.services, lambda _: None)  # what is on its way to the store, too
    except StoreUnavailable as error:
        behind = error
    try:
        given = await asyncio.to_thread(_give, context, identity, namespace, kind, named, why, note_of(request))
    except NotFound as error:
        raise behind or error from None
    if behind is not None and given.ordered_at < asked_at:  # nobody can say whether more came since that one
        raise behind
    await forget(context, given)
    logger.warning("erasure %d of a %s, ordered by %s: %s", given.erasure_id, kind, given.by, given.why)
    return json_response(described(given), 202)


async def _order_organisation(context: Context, request: Request, policy: str) -> Response:
    why, identity = _why(request), identity_of(request)
    await read_all(context.services, lambda _: None)
    asked = context.services, identity, policy, why, note_of(request)
    given, *parts = await asyncio.to_thread(give_organisation, *asked)
    await know_organisations(context)
    for each in parts:
        await forget(context, each)
    logger.warning("erasure %d of the organisation %s, ordered by %s: %s", given.erasure_id, policy, given.by, why)
    return json_response(described(given), 202)


def _why(request: Request) -> str:
    why = request.query_params.get("why", _WHY)
    if not 0 < len(why) <= _MOST_WHY or "\x00" in why:
        raise InvalidRequest(f"why: 1 to {_MOST_WHY} characters", param="why")
    return why


def _give(
    context: Context, identity: Identity, namespace: Namespace, kind: ErasedKind, named: str, why: str, note: Note
) -> Erasure:
    services, now = context.services, context.services.clock.now()
    foreseen = _foreseen(context, namespace, kind, named)
    with services.store.work() as work:
        subject = subject_of(context, work, namespace, kind, named)
        order = Erasure(
            erasure_id=0,
            namespace=namespace,
            kind=kind,
            subject=subject,
            why=why,
            by=identity.by,
            ordered_at=now,
            deadline_at=now + timedelta(days=services.erasure_days),
            foreseen=foreseen,
        )
        given, rest = give(work, order)
        if kind == "user":
            note.saw(UserHash(subject))
        note.write(work, namespace, erasure_id=given.erasure_id)
    redact_rest(services.store, given, rest)
    return given


def _foreseen(context: Context, namespace: Namespace, kind: ErasedKind, named: str) -> Foreseen:
    """Return what the order is to cost, which is said before it is given."""
    services = context.services
    with services.store.look() as view:
        subject = subject_of(context, view, namespace, kind, named)
        found = preview(view, services.blobs, services.clock, services.cluster, namespace, kind, subject)
    return Foreseen(found["updates"], found["seconds"])


def subject_of(context: Context, view: View, namespace: Namespace, kind: ErasedKind, named: str) -> str:
    """Return a user's hash, or the session. Raises NotFound where there is no turn of either."""
    if kind == "namespace":
        if not view.sweeps.sessions_in(namespace, context.services.clock.now()):
            raise NotFound(f"no turn in namespace {namespace}", param="namespace", code="unknown_namespace")
        return namespace
    if kind == "session":
        if not view.turns.has_session(namespace, SessionId(named)):
            raise NotFound(f"no session {named} in namespace {namespace}", param="session_id", code="unknown_session")
        return named
    now = context.services.clock.now()
    for user in (UserHash(named), context.keys.user_hash(namespace, named)):
        if user is not None and view.sweeps.sessions_of(namespace, user, now):
            return user
    hashed = context.keys.user_hash(namespace, named)
    for each in view.erasures.newest(namespace, _LARGEST_PAGE):
        if each.kind == "user" and each.done_at is None and each.subject in (named, hashed):
            return each.subject  # its turns have no user any more
    raise NotFound(f"no turn of user {named} in namespace {namespace}", param="user", code="unknown_user")


def _alone(body: ErasurePreviewBody) -> str:
    """Return the organisation, which has namespaces of its own."""
    if body.organisation is None or (body.user, body.session, body.namespace) != (None, None, None):
        raise InvalidRequest("organisation: alone", param="organisation")
    return body.organisation


def _named(body: ErasurePreviewBody) -> tuple[ErasedKind, str]:
    if body.user is not None and body.session is not None:
        raise InvalidRequest("give user or session, not both", param="user")
    if body.user is not None:
        return "user", body.user
    if body.session is not None:
        return "session", body.session
    if body.namespace is None:
        raise InvalidRequest("say whose words: user, session, or a whole namespace", param="namespace")
    return "namespace", body.namespace


def _namespace(identity: Identity, named: str | None) -> Namespace:
    namespace = Namespace(named or identity.namespace)
    if namespace != identity.namespace and "admin" not in identity.scopes:
        raise Forbidden(f"namespace: this API key is of {identity.namespace}", param="namespace")
    return namespace


def _reach(identity: Identity) -> Namespace | None:
    return None if "admin" in identity.scopes else identity.namespace


def described(order: Erasure) -> dict[str, Any]:
    """Return an order for an answer; how many sessions it has, not which."""
    fields: dict[str, Any] = to_builtins(order)
    for step in fields["steps"].values():
        step.pop("marks", None)
    return {**fields, "object": "erasure", "state": order.state, "sessions": len(order.sessions)}


def _with_progress(view: View, order: Erasure) -> dict[str, Any]:
    """Return an order with what the learner made again for it so far."""
    known = [view.exclusions.get(number) for number in order.exclusions]
    asked = [each for each in known if each is not None]
    told = [made for each in asked for made in (each.relearning, *each.relearnings.values()) if made is not None]
    return {**described(order), "relearning": [to_builtins(each) for each in told]}
