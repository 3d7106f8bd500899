"""The routes of `/v1/consent`: what a user, or whoever holds a session, lets be stored and learned from."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.plain import body_of, identity_of, json_body, json_response, only_parameters
from api.access.trail import Note, note_of
from api.feedback.targets import check_session_is_own, has_session
from api.http.background import on_a_thread
from api.turns.intake import check_id
from api.turns.lookup import read
from core.errors import InvalidRequest, NotFound
from core.ids import SessionId, UserHash
from core.operations.consents import UNSAID, Consent, ConsentSubject

_LONGEST_USER = 16_384
_STAYS = (
    "Nothing more is learned from these turns, and their rewards are taken back. What versions had already learned "
    "from them stays in their weights."
)


class ConsentBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/consent`: whose consent it is, a `user` or a session, and what changes of it.

    A key that is bound to a user speaks for that user where neither is named. What is left out stays as it was."""

    user: Annotated[str, Meta(min_length=1, max_length=_LONGEST_USER)] | None = None
    session_id: Annotated[str, Meta(max_length=512)] | None = None
    learn: bool | msgspec.UnsetType = msgspec.UNSET
    store: bool | msgspec.UnsetType = msgspec.UNSET


consent_decoder = msgspec.json.Decoder(ConsentBody)


def consent_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["consent"])

    @router.get("/v1/consent")
    async def get_consent(request: Request) -> Response:
        """Return what `user` or `session_id` has consented to; where nothing was said, all is allowed.

        `purposes` are those for which the namespace states that turns are processed."""
        only_parameters(request, "user", "session_id")
        identity, named = identity_of(request), request.query_params
        subject = await _subject(context, identity, named.get("user"), named.get("session_id"))
        _note(note_of(request), subject)
        known = await read(context.services, lambda view: view.consents.of([subject]))
        return json_response(_described(context, subject, known.get(subject, UNSAID)))

    @router.post(
        "/v1/consent", openapi_extra=json_body(ConsentBody, "Whose consent, and what changes of it"), name="set_consent"
    )
    async def set_consent(request: Request) -> Response:
        """Change what a user or a session consents to, from now on, and of learning also backwards.

        It is kept until it is changed again. A request's own headers may allow less, and never more. Without `learn`
        no turn of before or after trains, and rewards that were given are taken back; without `store` no words of what
        comes are stored, and nothing is learned, either. Consent that is given again holds for turns from then on."""
        body = await body_of(context, request, consent_decoder)
        identity = identity_of(request)
        learn, store = _said(body.learn), _said(body.store)
        if learn is None and store is None:
            raise InvalidRequest("learn: say learn, store or both", param="learn")
        if learn and store is False:
            raise InvalidRequest("learn: nothing can be learned from what is not stored", param="learn")
        subject = await _subject(context, identity, body.user, body.session_id)
        changed = await on_a_thread(_change, context, identity, subject, (learn, store), note_of(request))
        await context.consents.refresh()
        context.taking_back.hasten()
        return json_response(_described(context, subject, changed))

    return router


def _said(value: bool | msgspec.UnsetType) -> bool | None:
    return None if isinstance(value, msgspec.UnsetType) else value


async def _subject(context: ApiContext, identity: Identity, user: str | None, session_id: str | None) -> ConsentSubject:
    """Return whose consent is meant.

    Raises InvalidRequest unless one of both is named, Forbidden for another user than the key's, and NotFound for a
    session that nobody has, or that has turns of another user than the key's."""
    if user is not None and session_id is not None:
        raise InvalidRequest("session_id: name a user or a session, one of them", param="session_id")
    if session_id is not None:
        known_id = SessionId(check_id(session_id, "session_id"))
        if not await has_session(context.services, identity.namespace, known_id):
            raise NotFound(f"no session {session_id}", param="session_id", code="unknown_session")
        await check_session_is_own(context.services, identity, known_id)
        return ConsentSubject(identity.namespace, "session", known_id)
    hashed = context.keys.user_of(identity, user)
    if hashed is None:
        raise InvalidRequest("user: name a user or a session", param="user")
    return ConsentSubject(identity.namespace, "user", hashed)


def _change(
    context: ApiContext, identity: Identity, subject: ConsentSubject, said: tuple[bool | None, bool | None], note: Note
) -> Consent:
    """Store what was said, and that it was, in one transaction."""
    with context.services.store.work() as work:
        work.consents.hold()
        before = work.consents.of([subject]).get(subject, UNSAID)
        if said[0] and not (said[1] or before.store):
            raise InvalidRequest("learn: what is not stored teaches nothing: give store, too", param="learn")
        after = before.changed(*said, context.services.clock.now(), identity.by)
        work.consents.put(subject, after, takes_back=not after.learn or after.learn_since is not None)
        _note(note, subject)
        note.write(work, learn=after.learn, store=after.store)
    return after


def _note(note: Note, subject: ConsentSubject) -> None:
    """Say in the trail whose consent it is."""
    if subject.kind == "user":
        note.saw(UserHash(subject.name))
    else:
        note.add(session_id=subject.name)


def _described(context: ApiContext, subject: ConsentSubject, consent: Consent) -> dict[str, Any]:
    return {
        "object": "consent",
        "kind": subject.kind,
        "learn": consent.learn,
        "store": consent.store,
        "learn_since": consent.learn_since,
        "changed_at": consent.changed_at,
        "changed_by": consent.changed_by,
        "says": None if consent.learn else _STAYS,
        "purposes": context.services.privacy.purposes_in(subject.namespace),
    }
