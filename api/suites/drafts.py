"""The routes of `/v1/suite/drafts`: cases that were mined from sessions, and a person's decision on each."""

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import Context
from api.access.identity import Identity
from api.access.plain import body_of, identity_of, json_body, json_response, only_parameters
from api.access.trail import note_of
from core.errors import NotFound
from core.ids import Namespace
from core.operations.drafts import Draft, DraftCase, Drafts, Reviewed, Verdict


class DecisionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/suite/drafts/{draft_id}`; `case` is the draft's case as it is to be from now on."""

    verdict: Verdict
    note: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")] | None = None
    case: DraftCase | None = None


decision_decoder = msgspec.json.Decoder(DecisionBody)


def drafts_router(context: Context) -> APIRouter:
    router = APIRouter(tags=["suite"])
    services = context.services

    @router.get("/v1/suite/drafts")
    async def list_drafts(request: Request) -> Response:
        """Return the drafts that `onward suite mine` made of sessions, those first that wait for a decision.

        A key with the scope admin sees those of all namespaces."""
        identity = identity_of(request)
        only_parameters(request)
        found = [] if services.drafts is None else await asyncio.to_thread(services.drafts.listed, _of(identity))
        return json_response({"drafts": [_described(draft) for draft in found]})

    @router.post(
        "/v1/suite/drafts/{draft_id}",
        openapi_extra=json_body(DecisionBody, "The decision"),
        summary="Accept a draft as a case of the suite, refuse it, or edit it",
        operation_id="decide_draft",
    )
    async def decide(request: Request, draft_id: str) -> Response:
        identity = identity_of(request)
        body = await body_of(context, request, decision_decoder)
        reviewed = Reviewed(
            at=services.clock.now(),
            by=identity.by,
            draft_id=draft_id,
            verdict=body.verdict,
            note=body.note,
            case=body.case,
        )
        decided = await asyncio.to_thread(_drafts(services.drafts, draft_id).decide, _of(identity), reviewed)
        note_of(request).add(decided.namespace)
        return json_response(_described(decided))

    return router


def _drafts(drafts: Drafts | None, draft_id: str) -> Drafts:
    if drafts is None:
        raise NotFound(f"no draft {draft_id}: the setting release.evals.drafts names no suite", param="draft_id")
    return drafts


def _of(identity: Identity) -> Namespace | None:
    return None if "admin" in identity.scopes else identity.namespace


def _described(draft: Draft) -> dict[str, Any]:
    described: dict[str, Any] = msgspec.to_builtins(draft)
    return described
