"""The routes of `/v1/keys`: API keys that are made, rotated and revoked while the service runs."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
from api.access.identity import TAKEN
from api.access.plain import body_of, identity_of, json_body, json_response, only_parameters
from api.access.trail import Note, note_of
from api.http.background import on_a_thread
from api.turns.lookup import read
from core.errors import Conflict, NotFound
from core.ids import Namespace
from core.operations.keys import KeyWish, Party, StoredKey, check_wish, make_key, revoked, rotated
from core.settings import KEY_NAME, Scope
from core.settings.http.api import LARGEST_BURST, LARGEST_RATE, LEAST_RATE
from core.store.work import Work

_DAY_S = 86_400.0
_Change = Callable[[Work, StoredKey], tuple[str | None, StoredKey]]


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/keys`; the fields are those of `[[api.keys]]`."""

    namespace: Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
    name: Annotated[str, Meta(pattern=KEY_NAME)]
    user: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    scopes: tuple[Scope, ...] = ("chat", "feedback")
    requests_per_minute: Annotated[float, Meta(ge=LEAST_RATE, le=LARGEST_RATE)] | None = None
    burst: Annotated[int, Meta(ge=1, le=LARGEST_BURST)] | None = None
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


class RotateBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/keys/{key_id}/rotate`."""

    overlap_s: Annotated[float, Meta(ge=0, le=366 * _DAY_S)] = _DAY_S
    """How long the key before it goes on working."""


class RevokeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/keys/{key_id}/revoke`."""

    why: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")] | None = None


key_decoder = msgspec.json.Decoder(KeyBody)
rotate_decoder = msgspec.json.Decoder(RotateBody)
revoke_decoder = msgspec.json.Decoder(RevokeBody)


def keys_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["keys"])

    @router.get("/v1/keys")
    async def list_keys(request: Request) -> Response:
        """Return the keys of the store, each with when it was last used, to the hour; the keys themselves nobody has.

        `configured` counts those of the settings file, which are not listed."""
        only_parameters(request)
        services = context.services
        found = await read(services, lambda view: view.keys.all())
        now = services.clock.now()
        data = [described(key, now) for key in found]
        return json_response({"object": "list", "configured": len(services.settings.keys), "data": data})

    @router.post("/v1/keys", openapi_extra=json_body(KeyBody, "What the key is to be"), operation_id="create_key")
    async def create_key(request: Request) -> Response:
        """Make a key, and return it: this is the only time that it is shown."""
        body = await body_of(context, request, key_decoder)
        fields = msgspec.structs.asdict(body)
        namespace = Namespace(body.namespace)
        wish = KeyWish(**{**fields, "namespace": namespace, "user": context.keys.user_hash(namespace, body.user)})
        made = await on_a_thread(_create, context, wish, identity_of(request).by, note_of(request))
        return await _shown(context, *made, status=201)

    _change_routes(router, context)
    return router


def _change_routes(router: APIRouter, context: ApiContext) -> None:
    services = context.services

    @router.post(
        "/v1/keys/{key_id}/revoke", openapi_extra=json_body(RevokeBody, "An optional reason"), operation_id="revoke_key"
    )
    async def revoke_key(request: Request, key_id: str) -> Response:
        """End a key: within seconds no replica takes it any more. A second time changes nothing."""
        body = await body_of(context, request, revoke_decoder)
        by = identity_of(request).by

        def change(work: Work, key: StoredKey) -> tuple[None, StoredKey]:
            ended = key if key.revoked_at is not None else revoked(key, by, services.clock.now(), body.why)
            work.keys.replace(ended)
            return None, ended

        return await _shown(context, *await on_a_thread(_change, context, key_id, change, note_of(request)))

    @router.post(
        "/v1/keys/{key_id}/rotate", openapi_extra=json_body(RotateBody, "The overlap"), operation_id="rotate_key"
    )
    async def rotate_key(request: Request, key_id: str) -> Response:
        """Make a key with the rights of this one, and return it; this one ends after the overlap."""
        body = await body_of(context, request, rotate_decoder)
        by = identity_of(request).by

        def change(work: Work, key: StoredKey) -> tuple[str, StoredKey]:
            now = services.clock.now()
            if key.is_over(now):
                raise Conflict(f"key {key_id} is over", param="key_id", code="key_is_over")
            text, new, old = rotated(key, by, now, body.overlap_s)
            work.keys.replace(old)
            work.keys.add(new)
            return text, new

        made = await on_a_thread(_change, context, key_id, change, note_of(request))
        return await _shown(context, *made, status=201)


async def _shown(context: ApiContext, text: str | None, key: StoredKey, status: int = 200) -> Response:
    await context.stored_keys.refresh()
    shown = {} if text is None else {"key": text}
    return json_response({**shown, **described(key, context.services.clock.now())}, status)


def _create(context: ApiContext, wish: KeyWish, by: str, note: Note) -> tuple[str, StoredKey]:
    now = context.services.clock.now()
    with context.services.store.work() as work:
        work.keys.hold()
        others = [Party(key.name, key.namespace, key.user) for key in work.keys.all()]
        check_wish(wish, [*context.keys.parties(), *others], TAKEN, now)
        text, made = make_key(wish, by, now)
        work.keys.add(made)
        note.write(work, wish.namespace, key_id=made.key_id)
    return text, made


def _change(context: ApiContext, key_id: str, change: _Change, note: Note) -> tuple[str | None, StoredKey]:
    with context.services.store.work() as work:
        work.keys.hold()
        known = work.keys.get(key_id)
        if known is None:
            raise NotFound(f"no key {key_id}; GET /v1/keys lists them", param="key_id", code="unknown_key")
        text, changed = change(work, known)
        note.write(work, known.namespace, **({} if changed.key_id == key_id else {"successor": changed.key_id}))
    return text, changed


def described(key: StoredKey, now: datetime) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(key)
    del fields["digest"]
    return {**fields, "state": _state(key, now)}


def _state(key: StoredKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.is_over(now) else "in force"
