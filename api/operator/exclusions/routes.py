"""The routes of `/v1/exclusions`: what operators took out of learning, and what taking out more would change."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
from api.access.plain import LARGEST_INTEGER, body_of, identity_of, json_body, json_response, only_parameters
from api.access.trail import note_of
from api.http.background import on_a_thread
from api.turns.lookup import read
from core.codec import to_builtins
from core.errors import Conflict
from core.ids import InferenceId, Namespace, UserHash, base_ref
from core.operations.exclusions import Excluded, Wish
from core.ports.exclusions import ExclusionOrders
from core.store.work import Work

_MOST_NAMES = 1000
_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
_Names = Annotated[tuple[_Name, ...], Meta(max_length=_MOST_NAMES)]
_Time = Annotated[datetime, Meta(tz=True)]


class WishBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/exclusions/preview`: turns that meet all of it. Users are named by their hashes."""

    users: _Names = ()
    turns: _Names = ()
    from_: _Time | None = msgspec.field(default=None, name="from")
    to: _Time | None = None
    version: Annotated[int, Meta(ge=1, le=LARGEST_INTEGER)] | None = None
    namespace: _Name | None = None

    @property
    def wish(self) -> Wish:
        return Wish(
            namespace=None if self.namespace is None else Namespace(self.namespace),
            users=tuple(map(UserHash, self.users)),
            turns=tuple(map(InferenceId, self.turns)),
            begin=self.from_,
            end=self.to,
            version=None if self.version is None else base_ref(self.version),
        )


class ExcludeBody(WishBody, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/exclusions`: the same, and why."""

    why: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]


wish_decoder = msgspec.json.Decoder(WishBody)
exclude_decoder = msgspec.json.Decoder(ExcludeBody)


def exclusions_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["exclusions"])
    services = context.services

    @router.get("/v1/exclusions")
    async def list_exclusions(request: Request) -> Response:
        """Return what operators excluded from learning, the newest first. None of it is taken back.

        `learned` is the number of its rewards that versions had learned from, `left` the first version of each lineage
        that was left because of it, and `order_id` the order to roll back, where one was needed."""
        only_parameters(request)
        found = await read(services, lambda view: view.exclusions.after())
        return json_response({"object": "list", "data": [_described(each) for each in reversed(found)]})

    @router.post(
        "/v1/exclusions/preview",
        openapi_extra=json_body(WishBody, "Whose or which turns"),
        operation_id="foresee_exclusion",
    )
    async def foresee_exclusion(request: Request) -> Response:
        """Return what excluding these turns would change; it changes nothing.

        `selected` turns are excluded. Versions learned from `learned` of them; these and all after them are
        `abandoned`, made by `updates`, and learning goes on from `back_to`; `soon` says how soon it can serve. `again`
        other turns are learned again, which takes about `again_s` seconds of learning."""
        body = await body_of(context, request, wish_decoder)
        orders = _known(services.exclusions)
        return json_response(to_builtins(await on_a_thread(orders.foresee, body.wish)))

    @router.post(
        "/v1/exclusions",
        openapi_extra=json_body(ExcludeBody, "Whose or which turns, and why"),
        operation_id="exclude_turns",
    )
    async def exclude_turns(request: Request) -> Response:
        """Exclude turns from learning, and go back to before their first use. It is not taken back."""
        identity = identity_of(request)
        body = await body_of(context, request, exclude_decoder)
        orders, note = _known(services.exclusions), note_of(request)

        def written(work: Work, given: Mapping[str, str]) -> None:
            note.write(work, body.namespace, **given)

        number, foreseen = await on_a_thread(orders.order, body.wish, body.why, identity.by, written)
        return json_response({"exclusion_id": number, "by": identity.by, **to_builtins(foreseen)})

    return router


def _known(orders: ExclusionOrders | None) -> ExclusionOrders:
    if orders is None:
        raise Conflict("nothing is learned here, and so nothing is excluded")
    return orders


def _described(one: Excluded) -> dict[str, Any]:
    what = one.what
    return {
        "exclusion_id": one.exclusion_id,
        "users": sorted(what.users),
        "turns": len(what.turns),
        "from": what.begin,
        "to": what.end,
        "namespace": what.namespace,
        "learned": len(one.found.learned),
        "left": one.found.left,
        "order_id": one.found.order_id,
        "why": one.why,
        "by": one.by,
        "at": one.at,
    }
