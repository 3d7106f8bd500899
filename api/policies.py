"""`/v1/policies` and `/v1/models`: which versions there are, and which one serves."""

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.context import Context
from api.lookup import read
from api.plain import body_of, identify, json_body, json_response, only_parameters, whole_number
from core.errors import Conflict, GateRefused, NotFound, WeightsError
from core.events import PolicyVersion
from core.ids import Version
from core.store import policies

_LARGEST_PAGE = 1000
_DEFAULT_LIMIT = 100
_SHOWN = ("version", "policy", "digest", "parent", "manifest", "turns", "updates", "metrics", "weights", "created_at")


class RollbackBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/policies/{version}/rollback`."""

    why: Annotated[str, Meta(min_length=1, max_length=1000)]


rollback_decoder = msgspec.json.Decoder(RollbackBody)


def policies_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["policies"])
    services = context.services

    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:
        """The one model that this service speaks for."""
        identify(context, request)
        return json_response({"object": "list", "data": [_model(context)]})

    @router.get("/v1/models/{model:path}")
    async def get_model(request: Request, model: str) -> Response:
        identify(context, request)
        if model != services.model_name:
            raise NotFound(f"the model {model!r} does not exist", param="model", code="model_not_found")
        return json_response(_model(context))

    @router.get("/v1/policies")
    async def list_policies(request: Request) -> Response:
        """Versions, the newest first, each with its state; `live` is the one that serves now."""
        identify(context, request)
        only_parameters(request, "limit")
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE)
        listed = await read(services, lambda c: policies.list_policies(c, limit))
        data = [_described(policy, state) for policy, state in listed]
        return json_response({"object": "list", "live": services.policy.live_version, "data": data})

    @router.post("/v1/policies/{version}/rollback", openapi_extra=json_body(RollbackBody, "Why"))
    async def roll_back(request: Request, version: str) -> Response:
        """Serve an earlier version again, at once. 409 when its weights cannot serve."""
        identify(context, request).require("admin")
        body = await body_of(context, request, rollback_decoder)
        number = Version(int(version)) if version.isascii() and version.isdigit() and len(version) < 19 else None
        known = number is not None and await read(services, lambda c: policies.get_policy(c, number)) is not None
        if number is None or not known:
            raise NotFound(f"no policy version {version}", param="version", code="unknown_version")
        try:
            await asyncio.to_thread(services.rollback, number, body.why)
        except (GateRefused, WeightsError) as error:
            raise Conflict(str(error), param="version", code="rollback_refused") from error
        return json_response({"version": number, "status": "live"})

    return router


def _model(context: Context) -> dict[str, Any]:
    return {"id": context.services.model_name, "object": "model", "created": 0, "owned_by": "onward"}


def _described(policy: PolicyVersion, state: str) -> dict[str, Any]:
    fields = msgspec.to_builtins(policy)
    return {"state": state, **{name: fields[name] for name in _SHOWN}}
