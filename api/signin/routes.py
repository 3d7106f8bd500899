"""The routes of `/signin`: to the identity provider and back; and `GET /v1/me`: who asks, and what he may do."""

import hmac
import secrets
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from api.access.context import Context
from api.access.identity import Identity
from api.access.plain import body_of, json_response, only_parameters
from api.access.sessions import BEGUN, COOKIE, Begun, Session
from api.access.trail import note_of
from core.errors import Forbidden, NotFound, StoreUnavailable, Unauthorized
from core.operations.audit import Deed

if TYPE_CHECKING:
    from api.signin.provider import Provider


class EndBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /signin/end`: `{}`."""


end_decoder = msgspec.json.Decoder(EndBody)


def signin_router(context: Context) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    settings, sessions = context.services.settings.sign_in, context.sessions

    @cache
    def provider() -> "Provider":
        if not sessions.are_on:
            raise NotFound("nobody signs in here: api.sign_in.issuer is not set", code="no_sign_in")
        from api.signin.provider import Provider  # and with it cryptography, where somebody signs in

        return Provider(settings)

    @router.get("/signin/begin")
    async def begin(request: Request) -> Response:
        """Send a browser to the identity provider."""
        begun = Begun(*(secrets.token_urlsafe(32) for _ in range(3)))
        answer = RedirectResponse(await provider().way_there(begun), 303)
        answer.headers.append("set-cookie", sessions.cookie_of_begun(begun))
        return _unkept(answer)

    @router.get("/signin/done")
    async def done(request: Request) -> Response:
        """Take a browser that comes back from the identity provider in, and show the console."""
        here, asked = provider(), request.query_params
        begun = sessions.begun(dict(request.scope["headers"]))
        if begun is None or not hmac.compare_digest(begun.state.encode(), asked.get("state", "").encode()):
            raise Forbidden("this is not the end of a sign-in that began in this browser", code="sign_in_failed")
        if "code" not in asked:
            raise Forbidden("the identity provider let nobody in", code="sign_in_failed")
        session = await here.who(asked["code"], begun)
        _note(context, request, session.by, "GET /signin/done", _namespace(context, session))
        answer = RedirectResponse("../", 303)
        answer.headers.append("set-cookie", sessions.cookie_of(session))
        answer.headers.append("set-cookie", sessions.without(BEGUN))
        return _unkept(answer)

    @router.post("/signin/end")
    async def end(request: Request) -> Response:
        """Sign out: the browser forgets who it is."""
        identity = sessions.identify(dict(request.scope["headers"]), changes=True)
        await body_of(context, request, end_decoder)
        if identity is not None:
            _note(context, request, identity.by, "POST /signin/end", identity.namespace)
        answer = json_response({"status": "signed out"})
        answer.headers.append("set-cookie", sessions.without(COOKIE))
        return _unkept(answer)

    _who_route(router, context)
    return router


def _who_route(router: APIRouter, context: Context) -> None:
    @router.get("/v1/me")
    async def me(request: Request) -> Response:
        """Return who asks and what he may do, all null for nobody; `sign_in` is where a browser may sign in."""
        only_parameters(request)
        headers = dict(request.scope["headers"])
        try:
            identity: Identity | None = context.sessions.identify(headers, changes=False) or context.keys.identify(
                headers.get(b"authorization"), headers.get(b"x-api-key")
            )
        except (Unauthorized, StoreUnavailable):
            identity = None
        signed_in = identity is not None and identity.fingerprint == "oidc"
        known = (None, None, None) if identity is None else (identity.by, identity.namespace, sorted(identity.scopes))
        who = dict(zip(("by", "namespace", "scopes"), known, strict=True))
        where = "signin/begin" if context.sessions.are_on else None
        return _unkept(json_response({**who, "signed_in": signed_in, "sign_in": where}))


def _namespace(context: Context, session: Session) -> str:
    return context.services.settings.sign_in.roles[session.roles[0]].namespace


def _note(context: Context, request: Request, by: str, what: str, namespace: str) -> None:
    now = context.services.clock.now()
    note_of(request).deed = Deed(at=now, by=by, key="oidc", namespace=namespace, kind="change", what=what)


def _unkept(answer: Response) -> Response:
    answer.headers["cache-control"] = "no-store"
    return answer
