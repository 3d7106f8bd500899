"""The routes of `/v1/drafts`: drafts of eval cases, which an operator accepts with a checker, or rejects."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from api.access.context import ApiContext
from api.access.plain import body_of, identity_of, json_body, json_response, only_parameters, whole_number
from api.access.trail import note_of
from api.http.background import on_a_thread
from core.errors import InvalidRequest, NotFound
from core.operations.drafts import Acceptance, Decider, ListedDraft, SuiteDrafts, WholeDraft
from core.ports import Drafts

_DEFAULT_LIMIT, _LARGEST_PAGE = 100, 1000
_Suite = Annotated[str, Meta(min_length=1, max_length=4096)]
_Seen = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class AcceptBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/drafts/{name}/accept`."""

    suite: _Suite
    seen: _Seen
    """What was looked at, as the draft is shown with it."""
    checker: Annotated[str, Meta(min_length=1, max_length=10_000)] | None = None
    """In TOML, as a case has it: `{ kind = "contains", all = ["sum("] }`. No command, and not for an agent's work."""
    group: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    instruction: Annotated[str, Meta(min_length=1, max_length=100_000, pattern=r"^[^\x00]*$")] | None = None
    """For an agent's work: what is asked, in a person's words."""
    tests: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(min_length=1, max_length=1000)] | None = None
    """For an agent's work: the numbers, from 1, of the commands that are its tests."""


class RejectBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/drafts/{name}/reject`."""

    suite: _Suite
    seen: _Seen
    why: Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]*$")]


class UndoBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/drafts/{name}/undo`."""

    suite: _Suite
    seen: _Seen


accept_decoder = msgspec.json.Decoder(AcceptBody)
reject_decoder = msgspec.json.Decoder(RejectBody)
undo_decoder = msgspec.json.Decoder(UndoBody)


def drafts_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["drafts"])
    drafts = context.services.drafts

    @router.get("/v1/drafts")
    async def list_drafts(request: Request) -> Response:
        """Return the drafts of cases that wait for a person, the newest first, and those that were decided.

        Of each the first `limit`; `counts` says how many there are. `seen` is what a decision says it looked at."""
        only_parameters(request, "limit")
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1)
        namespace = identity_of(request).namespace
        found = SuiteDrafts(suites=()) if drafts is None else await on_a_thread(drafts.listed, namespace)
        return json_response(
            {
                "suites": found.suites,
                "waiting": [_listed(each) for each in found.waiting[:limit]],
                "decided": [_listed(each) for each in found.decided[:limit]],
                "counts": {"waiting": len(found.waiting), "decided": len(found.decided)},
                "problems": found.problems,
                "unlisted": found.unlisted,
            }
        )

    @router.get("/v1/drafts/{name}")
    async def get_draft(request: Request, name: str) -> Response:
        """Return one draft whole: request, curated answer, the turn that it is of, and the rules of its reuse."""
        only_parameters(request, "suite")
        suite = request.query_params.get("suite")
        if suite is None:
            raise InvalidRequest("suite: name the suite, as GET /v1/drafts does", param="suite", code="missing_field")
        namespace = identity_of(request).namespace
        found = await on_a_thread(_known(drafts, name).get, suite, name, namespace)
        note_of(request).add(suite=suite)
        return json_response(_whole(found))

    _decisions(router, context)
    return router


def _decisions(router: APIRouter, context: ApiContext) -> None:
    drafts = context.services.drafts

    async def decide(request: Request, suite: str, seen: str, carry_out: Callable[[Decider], WholeDraft]) -> Response:
        identity = identity_of(request)
        who = Decider(namespace=identity.namespace, by=identity.by, seen=seen)
        found = await on_a_thread(carry_out, who)
        note_of(request).add(suite=suite)
        return json_response(_whole(found))

    @router.post(
        "/v1/drafts/{name}/accept",
        openapi_extra=json_body(AcceptBody, "The checker that tells a right answer"),
        operation_id="accept_draft",
    )
    async def accept_draft(request: Request, name: str) -> Response:
        """Make a draft a case of its suite. A checker that finds the draft's own solution wrong is refused.

        An agent's work takes no checker: the commands that the agent ran are its tests."""
        body, known = await body_of(context, request, accept_decoder), _known(drafts, name)
        tests = None if body.tests is None else tuple(body.tests)
        given = Acceptance(checker=body.checker, group=body.group, instruction=body.instruction, tests=tests)
        return await decide(
            request,
            body.suite,
            body.seen,
            lambda who: known.accept(body.suite, name, given, who),
        )

    @router.post(
        "/v1/drafts/{name}/reject", openapi_extra=json_body(RejectBody, "The reason"), operation_id="reject_draft"
    )
    async def reject_draft(request: Request, name: str) -> Response:
        """Put a draft aside: it is not drafted again, and its session may be learned from."""
        body, known = await body_of(context, request, reject_decoder), _known(drafts, name)
        return await decide(request, body.suite, body.seen, lambda who: known.reject(body.suite, name, body.why, who))

    @router.post(
        "/v1/drafts/{name}/undo", openapi_extra=json_body(UndoBody, "What was looked at"), operation_id="undo_draft"
    )
    async def undo_draft(request: Request, name: str) -> Response:
        """Make what was accepted or rejected a draft again, while that stands, and no version has learned from it."""
        body, known = await body_of(context, request, undo_decoder), _known(drafts, name)
        return await decide(request, body.suite, body.seen, lambda who: known.undo(body.suite, name, who))


def _known(drafts: Drafts | None, name: str) -> Drafts:
    if drafts is None:
        raise NotFound(f"no draft {name}: the service has no suites", param="name", code="unknown_draft")
    return drafts


def _listed(draft: ListedDraft) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(draft)
    return fields


def _whole(draft: WholeDraft) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(draft)
    return {**fields.pop("listed"), **fields}
