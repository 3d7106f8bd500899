"""The routes of `/v1/audit`: who read, ordered, changed or deleted what."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from api.access.context import ApiContext
from api.access.plain import LARGEST_INTEGER, identity_of, json_response, only_parameters, whole_number
from api.http.background import on_a_thread
from api.turns.lookup import read
from core.operations.audit import AuditHead, StoredEntry

_LARGEST_PAGE = 1000
_DEFAULT_LIMIT = 100


def audit_router(context: ApiContext) -> APIRouter:
    router = APIRouter(tags=["audit"])
    services = context.services

    @router.get("/v1/audit")
    async def list_entries(request: Request) -> Response:
        """Return entries of the audit trail, the newest first, each with its digest.

        `next` is the `before` of the next page, null where there is none. A key with the scope admin sees those of
        all namespaces, and those about everybody."""
        identity = identity_of(request)
        only_parameters(request, "before", "limit")
        before = whole_number(request, "before", LARGEST_INTEGER, LARGEST_INTEGER)
        limit = whole_number(request, "limit", _DEFAULT_LIMIT, _LARGEST_PAGE, least=1)
        namespace = None if "admin" in identity.scopes else identity.namespace
        page = await read(services, lambda view: view.audit.newest(namespace, before, limit + 1))
        shown, rest = page[:limit], page[limit:]
        following = shown[-1].sequence if shown and rest else None
        return json_response({"data": [described(entry) for entry in shown], "next": following})

    @router.get("/v1/audit/head")
    async def get_head(request: Request) -> Response:
        """Return the number and the digest of the newest entry, to be kept elsewhere; `seal` where there is a key."""
        only_parameters(request)
        head: AuditHead = await read(services, lambda view: view.audit.head())
        if services.head is not None:
            head = await on_a_thread(services.head.sealed, head)
        return json_response(msgspec.to_builtins(head))

    return router


def described(entry: StoredEntry) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(entry.record)
    return {**fields, "digest": entry.digest}
