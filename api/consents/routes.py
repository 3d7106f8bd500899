"""The routes of consent: what a user allows to be done with what they say, in all or in one session.

It holds from the answer on, and for what was said before; the headers of requests can only narrow it. What may not be
stored any more is erased.

(These routes stand before the one that reads a session, whose id may end in `/consent`, too: theirs win.)"""

import asyncio
import logging
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import Context
from api.access.identity import Identity
from api.access.plain import body_of, identity_of, json_body, json_response, only_parameters
from api.access.trail import Note, note_of
from api.consents.erasing import erase
from api.feedback.targets import check_session_is_own, has_session
from api.turns.intake import check_id
from api.turns.lookup import read
from core.codec import to_builtins
from core.errors import InvalidRequest, NotFound
from core.ids import SessionId, UserHash
from core.operations.consents import Consent, ConsentKind
from core.records.consent_words import give, moment_after

_MOST_SHOWN: Final = 100
_MOST_USER_CHARACTERS: Final = 512
logger = logging.getLogger(__name__)


class ConsentBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `PUT .../consent`. What is left out stays as it was; at first all is allowed.

    Without `store` nothing may be learned, either. `purposes` are kept as they are said, and so is `why`."""

    learn: bool | None = None
    store: bool | None = None
    purposes: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=32)] | None = (
        None
    )
    why: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]


_decoder = msgspec.json.Decoder(ConsentBody)


def consents_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["consent"])

    @router.put("/v1/users/{user:path}/consent", openapi_extra=json_body(ConsentBody, "What the user allows, and why"))
    async def put_user_consent(request: Request, user: str) -> Response:
        """Record what a user allows, from now on and of what they said before. Returns it with what it changes.

        With `store: false` that is an order to erase what is stored: `erasure_id`."""
        subject = _user(context, identity_of(request), user)
        return await _put(context, request, "user", subject)

    @router.get("/v1/users/{user:path}/consent")
    async def get_user_consent(request: Request, user: str) -> Response:
        """Return what a user allows, and all words of theirs that led there, the newest first."""
        subject = _user(context, identity_of(request), user)
        return await _get(context, request, "user", subject)

    @router.put(
        "/v1/sessions/{session_id:path}/consent", openapi_extra=json_body(ConsentBody, "What is allowed, and why")
    )
    async def put_session_consent(request: Request, session_id: str) -> Response:
        """Record what is allowed of a session, from now on and of what was said in it before."""
        subject = await _session(context, identity_of(request), session_id)
        return await _put(context, request, "session", subject)

    @router.get("/v1/sessions/{session_id:path}/consent")
    async def get_session_consent(request: Request, session_id: str) -> Response:
        """Return what is allowed of a session, and all words that led there, the newest first."""
        subject = await _session(context, identity_of(request), session_id)
        return await _get(context, request, "session", subject)

    return router


def _user(context: Context, identity: Identity, user: str) -> str:
    """Return the hash of the user, who may not have said anything yet. Raises NotFound for another than the key's."""
    if not 0 < len(user) <= _MOST_USER_CHARACTERS:
        raise InvalidRequest(f"user: 1 to {_MOST_USER_CHARACTERS} characters", param="user")
    hashed = context.keys.user_hash(identity.namespace, user)
    if hashed is None or identity.user not in (None, hashed):
        raise NotFound(f"no user {user}", param="user", code="unknown_user")
    return hashed


async def _session(context: Context, identity: Identity, named: str) -> str:
    """Return the session's id. Raises NotFound for one that is not there, or of another user than the key's."""
    session_id = SessionId(check_id(named, "session_id"))
    if not await has_session(context.services, identity.namespace, session_id):
        raise NotFound(f"no session {session_id}", param="session_id", code="unknown_session")
    await check_session_is_own(context.services, identity, session_id)
    return session_id


async def _put(context: Context, request: Request, kind: ConsentKind, subject: str) -> Response:
    identity = identity_of(request)
    only_parameters(request)
    body = await body_of(context, request, _decoder)
    if body.learn is None and body.store is None:
        raise InvalidRequest("learn: say learn, store, or both", param="learn")
    if body.learn and body.store is False:
        raise InvalidRequest("learn: what is not stored cannot be learned from", param="learn")
    await context.consents.refresh(context.services)
    note = _noted(request, kind, subject)
    given = await asyncio.to_thread(_give, context, identity, kind, subject, body, note)
    context.consents.take(given)
    logger.info("%s brings word of a %s: learn %s, store %s", given.by, kind, given.learn, given.store)
    order = await erase(context, given, note) if body.store is False else None
    return json_response({**_described(given), "erasure_id": None if order is None else order.erasure_id})


def _noted(request: Request, kind: ConsentKind, subject: str) -> Note:
    note = note_of(request)
    if kind == "user":
        note.saw(UserHash(subject))
    return note


def _give(
    context: Context, identity: Identity, kind: ConsentKind, subject: str, body: ConsentBody, note: Note
) -> Consent:
    services, namespace = context.services, identity.namespace
    with services.store.work() as work:
        work.consents.hold()
        before = next(iter(work.consents.newest(namespace, kind, subject, 1)), None)
        store = body.store if body.store is not None else before is None or before.store
        learn = body.learn if body.learn is not None else before is None or before.learn
        now = services.clock.now()
        wanted = Consent(
            namespace=namespace,
            kind=kind,
            subject=subject,
            learn=learn and store,
            store=store,
            purposes=body.purposes if body.purposes is not None else () if before is None else before.purposes,
            why=body.why,
            by=identity.by,
            at=moment_after(before, now),
        )
        given = give(work, wanted, now)
        ids = {"consent_id": given.consent_id, "exclusion_id": given.exclusion_id}
        note.write(work, None, **{name: number for name, number in ids.items() if number is not None})
    return given


async def _get(context: Context, request: Request, kind: ConsentKind, subject: str) -> Response:
    only_parameters(request)
    _noted(request, kind, subject)
    namespace = identity_of(request).namespace
    found = await read(context.services, lambda view: view.consents.newest(namespace, kind, subject, _MOST_SHOWN))
    newest = found[0] if found else None
    return json_response(
        {
            "object": "consent",
            kind: subject,
            "learn": newest is None or newest.learn,
            "store": newest is None or newest.store,
            "history": [_described(each) for each in found],
        }
    )


def _described(consent: Consent) -> dict[str, Any]:
    fields: dict[str, Any] = to_builtins(consent)
    return {"object": "consent", **fields, fields.pop("kind"): fields.pop("subject")}
