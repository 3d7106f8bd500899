"""The routes of `/v1/policies` and `/v1/models`: the versions that exist, and the one that serves."""

import asyncio
from typing import Annotated, Any, NoReturn

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
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
from api.access.services import ApiServices
from api.access.trail import Note, note_of
from api.http.background import on_a_thread
from api.operator.alarms import may_see
from api.turns.intake import check_model
from api.turns.lookup import read
from core.codec import to_builtins
from core.errors import Conflict, EngineUnavailable, InvalidRequest, NotFound
from core.events import PolicyVersion
from core.ids import PolicyRef, base_ref
from core.operations.alarms import Opening
from core.operations.fleet import Order, OrderKind
from core.operations.servable import Servable
from core.store.work import View

_POLL_S = 0.05


async def carry_out(services: ApiServices, kind: OrderKind, version: PolicyRef, why: str, by: str, note: Note) -> bool:
    """Give an order and return whether it is done; False if it still waits after `order_wait_s`.

    The order is written to the store, and this waits for the release controller, which may be another process. Raises
    NotFound, InvalidRequest, Conflict or EngineUnavailable if the controller refuses it."""
    order_id = await on_a_thread(_give, services, kind, version, why, by, note)
    deadline_s = services.clock.monotonic() + services.settings.advanced.order_wait_s
    while services.clock.monotonic() < deadline_s:
        order = await read(services, lambda view: _get(view, order_id))
        if order.done_at is not None:
            if order.error is not None:
                _refuse(order)
            return True
        await asyncio.sleep(_POLL_S)
    return False


def _give(services: ApiServices, kind: OrderKind, version: PolicyRef, why: str, by: str, note: Note) -> int:
    with services.store.work() as work:
        order_id = work.orders.give(services.cluster, kind, version, why, by, services.clock.now())
        note.write(work, order_id=order_id)
    return order_id


def _get(view: View, order_id: int) -> Order:
    order = view.orders.get(order_id)
    assert order is not None, "orders are never deleted"
    return order


def _refuse(order: Order) -> NoReturn:
    assert order.error is not None
    match order.error_code:
        case "unknown_version":
            raise NotFound(f"{order.error}; GET /v1/policies lists them", param="version", code="unknown_version")
        case "invalid":
            raise InvalidRequest(order.error, param="version", code="not_possible")
        case "unavailable":
            raise EngineUnavailable(order.error)
    raise Conflict(order.error, param="version", code=f"{order.kind}_refused")


_LARGEST_PAGE = 1000
_DEFAULT_LIMIT = 100
_ORDERS_SHOWN = 10
_SHOWN = (
    *("version", "policy", "digest", "parent", "manifest", "turns", "updates", "metrics", "weights", "created_at"),
    *("verdict", "kept_out"),
)


_ORDERS: dict[OrderKind, str] = {
    "promote": "Serve a canary or a candidate now, to everybody",
    "rollback": "Serve an earlier version again; the later ones are rolled back",
    "hold": "Do nothing with this candidate or canary until it is promoted, rolled back or unheld",
    "unhold": "Let a held candidate or canary go on",
    "pin": "Serve this version, and release nothing else until it is unpinned",
    "unpin": "Release versions again",
}
_STATUS: dict[OrderKind, str] = {
    "promote": "live",
    "rollback": "live",
    "hold": "held",
    "unhold": "candidate",
    "pin": "pinned",
    "unpin": "live",
}


class OrderBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/policies/{version}/promote`, and of the other orders."""

    why: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]


order_decoder = msgspec.json.Decoder(OrderBody)


def policies_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["policies"])
    services = context.services

    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:
        """Return the one model that this service serves."""
        return json_response({"object": "list", "data": [_model(context)]})

    @router.get("/v1/models/{model:path}")
    async def get_model(request: Request, model: str) -> Response:
        check_model(model, services.model_name)
        return json_response(_model(context))

    @router.get("/v1/policies")
    async def list_policies(request: Request) -> Response:
        """Return versions, the newest first, each with its state; `live` is the one that serves now.

        With `before`, those before that version; `next` is the `before` of the next page, null where there is none.

        `servable` says how soon each could serve again: `now`, after a `rebuild` of `about_s` seconds, or not at all
        (`lost`, which then says why). `kept_out` names the eval suites whose solutions were kept out of its update,
        each with the digest of its cases, its solutions, and the turns that were left out because of it.

        `held_by` lists the alarms under which candidates wait, until they are acknowledged or closed (of another
        namespace's only that there is one); `orders` the newest orders, with who gave them."""
        only_parameters(request, "limit", "before")
        identity = identity_of(request)
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1)
        before = whole_number(request, "before", LARGEST_INTEGER, LARGEST_INTEGER)
        page = await read(services, lambda view: view.policies.newest(limit + 1, before=before))
        listed, rest = page[:limit], page[limit:]
        soon = await read(services, lambda view: view.files.servable([policy.version for policy, _ in listed]))
        data = [_described(policy, state, soon[policy.version]) for policy, state in listed]
        switches = await read(services, lambda view: view.fleet.switches(services.cluster))
        running = await read(services, lambda view: view.experiments.running(services.cluster))
        return json_response(
            {
                "object": "list",
                "live": services.policy.live_version,
                "pinned": switches.pinned,
                "held": switches.held,
                "experiment": None if running is None else to_builtins(running),
                "held_by": await read(services, lambda view: _held_by(view, identity)),
                "orders": to_builtins(
                    await read(services, lambda view: view.orders.newest(services.cluster, _ORDERS_SHOWN))
                ),
                "data": data,
                "next": listed[-1][0].version if listed and rest else None,
            }
        )

    for kind, meaning in _ORDERS.items():
        _order_route(router, context, kind, meaning)
    _history_routes(router, context)
    return router


def _history_routes(router: APIRouter, context: ApiContext) -> None:
    services = context.services

    @router.get("/v1/releases")
    async def list_releases(request: Request) -> Response:
        """Return the chain of releases, the oldest first: which version took which step, when, why, by whom.

        Each step says how soon its version could serve again, as `GET /v1/policies` does.

        `held_by` lists the alarms under which candidates wait."""
        only_parameters(request, "after", "limit")
        identity = identity_of(request)
        after = whole_number(request, "after", 0, 1 << 53)
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1)
        listed = await read(services, lambda view: view.releases.after(after, limit))
        soon = await read(services, lambda view: view.files.servable({release.version for _, release in listed}))
        data = [
            {"sequence": sequence, **to_builtins(release), **to_builtins(soon[release.version])}
            for sequence, release in listed
        ]
        held_by = await read(services, lambda view: _held_by(view, identity))
        return json_response({"object": "list", "held_by": held_by, "data": data})

    @router.get("/v1/experiments")
    async def list_experiments(request: Request) -> Response:
        """Return canaries, the newest first, with verdict and figures."""
        only_parameters(request, "limit")
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1)
        listed = await read(services, lambda view: view.experiments.newest(services.cluster, limit))
        return json_response({"object": "list", "data": [to_builtins(each) for each in listed]})


def _order_route(router: APIRouter, context: ApiContext, kind: OrderKind, meaning: str) -> None:
    @router.post(
        f"/v1/policies/{{version}}/{kind}",
        openapi_extra=json_body(OrderBody, "Why"),
        summary=meaning,
        operation_id=f"{kind}_policy",
    )
    async def order(request: Request, version: str) -> Response:
        identity = identity_of(request)
        body = await body_of(context, request, order_decoder)
        found = digits(version, LARGEST_INTEGER)
        if found is None:
            raise NotFound(f"no policy version {version}", param="version", code="unknown_version")
        number = base_ref(found)
        if await carry_out(context.services, kind, number, body.why, identity.by, note_of(request)):
            return json_response({"version": number, "status": _STATUS[kind], "by": identity.by})
        return json_response({"version": number, "status": "accepted", "by": identity.by}, 202)


def _held_by(view: View, identity: Identity) -> list[dict[str, Any]]:
    """Return the alarms under which candidates wait; of another namespace's only that there is one."""
    found = view.alarms.holding_releases()
    return [_holding(alarm.opening if may_see(identity, alarm) else None) for alarm in found]


def _holding(found: Opening | None) -> dict[str, Any]:
    if found is None:
        return {"alarm_id": None, "monitor": None, "meaning": "An alarm of another namespace."}
    return {"alarm_id": found.alarm_id, "monitor": found.monitor, "meaning": found.meaning}


def _model(context: ApiContext) -> dict[str, Any]:
    return {"id": context.services.model_name, "object": "model", "created": 0, "owned_by": "onward"}


def _described(policy: PolicyVersion, state: str, soon: Servable) -> dict[str, Any]:
    fields = to_builtins(policy)
    return {"state": state, **{name: fields[name] for name in _SHOWN}, **to_builtins(soon)}
