"""The access table: who may use which route, one line for each. `docs/security.md` has the same table in words.

A route without a line here stops the application before it serves anybody."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from fastapi import Request
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute, Route

from api.access.context import ApiContext
from api.access.identity import Identity
from api.access.trail import begin_note
from api.http.background import called_by
from api.http.unread import name_caller
from core.operations.audit import DeedKind
from core.settings import Scope

Reach = Literal["nobody's", "everybody's", "its namespace's", "its own", "its own or its namespace's"]


class Need(NamedTuple):
    """The access that a route needs.

    A key with this `scope`; without a scope, any key; or, without `key`, none at all. `reach` says whose things the
    route shows or changes. `its own or its namespace's` is its namespace's where the key may `read`, else its own.
    With `by_user`, a key that is bound to a user reaches only its own. `deed` says as what its use stands in the audit
    trail; None: it does not, since it shows nobody's things, or what it does stands in the log under the key's name."""

    scope: Scope | None
    reach: Reach
    by_user: bool = False
    key: bool = True
    deed: DeedKind | None = None

    def check(self, identity: Identity) -> None:
        """Raise Forbidden when the key lacks the scope."""
        if self.scope is not None:
            identity.require(self.scope)

    def deed_of(self, identity: Identity) -> DeedKind | None:
        """Return as what this caller's use stands in the trail, which is not filled with looks at what is one's own."""
        shows_only_own = self.scope is None and "read" not in identity.scopes
        return None if shows_only_own else self.deed


_OPEN = Need(None, "nobody's", key=False)
_STATE = Need("read", "everybody's")
_LIST = Need("read", "its namespace's", deed="read")
_LOOK_UP = Need(None, "its own or its namespace's", deed="read")
_ORDER = Need("admin", "everybody's", deed="order")
_DECIDE = Need("admin", "its namespace's", deed="change")
_CHANGE_KEYS = Need("admin", "everybody's", deed="change")
ACCESS: Final[Mapping[tuple[str, str], Need]] = {
    ("GET", "/"): _OPEN,
    ("GET", "/console/{name:path}"): _OPEN,
    ("GET", "/docs"): _OPEN,
    ("GET", "/docs/{path:path}"): _OPEN,
    ("GET", "/openapi.json"): _OPEN,
    ("GET", "/healthz"): _OPEN,
    ("GET", "/health"): _OPEN,
    ("GET", "/readyz"): _OPEN,
    ("GET", "/metrics"): _OPEN,
    ("GET", "/v1/models"): Need(None, "nobody's"),
    ("GET", "/v1/models/{model:path}"): Need(None, "nobody's"),
    ("POST", "/v1/chat/completions"): Need("chat", "its own"),
    ("POST", "/v1/completions"): Need("chat", "its own"),
    ("POST", "/v1/responses"): Need("chat", "its own"),
    ("GET", "/v1/responses/{response_id}"): _LOOK_UP,
    ("POST", "/v1/messages"): Need("chat", "its own"),
    ("POST", "/v1/messages/count_tokens"): Need("chat", "nobody's"),
    ("POST", "/v1/fim/completions"): Need("chat", "its own"),
    ("POST", "/infill"): Need("chat", "its own"),
    ("POST", "/v1/sessions/{session_id:path}/end"): Need("chat", "its namespace's", by_user=True),
    ("GET", "/v1/outcomes"): Need(None, "nobody's"),
    ("POST", "/v1/feedback"): Need("feedback", "its namespace's", by_user=True),
    ("POST", "/v1/feedback/batch"): Need("feedback", "its namespace's", by_user=True),
    ("POST", "/v1/continue/data"): Need("feedback", "its namespace's", by_user=True),
    ("GET", "/tabby/v1/health"): Need(None, "nobody's"),
    ("GET", "/tabby/v1beta/server_setting"): Need(None, "nobody's"),
    ("POST", "/tabby/v1/completions"): Need("chat", "its own"),
    ("POST", "/tabby/v1/events"): Need("feedback", "its namespace's", by_user=True),
    ("POST", "/v1/logs"): Need("feedback", "its namespace's", by_user=True),
    ("POST", "/v1/traces"): Need("feedback", "its namespace's", by_user=True),
    ("DELETE", "/v1/feedback/{feedback_id:path}"): Need("feedback", "its own", deed="delete"),
    ("GET", "/v1/feedback/{feedback_id:path}"): _LOOK_UP,
    ("GET", "/v1/consent"): Need("feedback", "its namespace's", by_user=True, deed="read"),
    ("POST", "/v1/consent"): Need("feedback", "its namespace's", by_user=True, deed="change"),
    ("GET", "/v1/sessions"): _LIST,
    ("GET", "/v1/sessions/{session_id:path}"): _LOOK_UP,
    ("GET", "/v1/turns/{inference_id}"): _LOOK_UP,
    ("GET", "/v1/rewards/{inference_id}"): _LOOK_UP,
    ("GET", "/v1/rewards"): _LIST,
    ("GET", "/v1/rewards/stream"): _LIST,
    ("GET", "/v1/curves"): _LIST,
    ("GET", "/v1/behaviour"): _LIST,
    ("GET", "/v1/frontier"): _LIST,
    ("GET", "/v1/improvement"): _LIST,
    ("GET", "/v1/overview"): _LIST,
    ("GET", "/v1/clients"): _LIST,
    ("GET", "/v1/alarms"): _LIST,
    ("POST", "/v1/alarms/{alarm_id}/ack"): Need("operate", "its namespace's", deed="change"),
    ("POST", "/v1/alarms/{alarm_id}/unack"): Need("operate", "its namespace's", deed="change"),
    ("GET", "/v1/drafts"): _LIST,
    ("GET", "/v1/drafts/{name}"): _LIST,
    ("POST", "/v1/drafts/{name}/accept"): _DECIDE,
    ("POST", "/v1/drafts/{name}/reject"): _DECIDE,
    ("POST", "/v1/drafts/{name}/undo"): _DECIDE,
    ("GET", "/v1/audit"): Need("audit", "its namespace's", deed="read"),
    ("GET", "/v1/audit/head"): Need("audit", "nobody's"),
    ("GET", "/v1/quotas"): _LIST,
    ("GET", "/v1/keys"): Need("admin", "everybody's"),
    ("POST", "/v1/keys"): _CHANGE_KEYS,
    ("POST", "/v1/keys/{key_id}/revoke"): _CHANGE_KEYS,
    ("POST", "/v1/keys/{key_id}/rotate"): _CHANGE_KEYS,
    ("GET", "/v1/exclusions"): Need("admin", "everybody's", deed="read"),
    ("POST", "/v1/exclusions/preview"): Need("admin", "everybody's", deed="read"),
    ("POST", "/v1/exclusions"): _ORDER,
    ("GET", "/v1/policies"): _STATE,
    ("GET", "/v1/releases"): _STATE,
    ("GET", "/v1/experiments"): _STATE,
    ("GET", "/v1/fleet"): _STATE,
    ("GET", "/v1/status"): _STATE,
    ("GET", "/v1/stages"): _STATE,
    ("GET", "/v1/serving"): _STATE,
    ("GET", "/v1/policies/{version}/rollback"): _STATE,
    ("POST", "/v1/policies/{version}/promote"): _ORDER,
    ("POST", "/v1/policies/{version}/rollback"): _ORDER,
    ("POST", "/v1/policies/{version}/hold"): _ORDER,
    ("POST", "/v1/policies/{version}/unhold"): _ORDER,
    ("POST", "/v1/policies/{version}/pin"): _ORDER,
    ("POST", "/v1/policies/{version}/unpin"): _ORDER,
}


class AccessCheck:
    """The dependency of every plain route that checks its line of the table before anything else of it runs."""

    def __init__(self, context: ApiContext) -> None:
        self._keys, self._clock = context.keys, context.services.clock

    async def __call__(self, request: Request) -> None:
        """Let the request in or raise Unauthorized or Forbidden."""
        path = request.scope["route"].path
        need = ACCESS[request.method, path]
        if not need.key:
            return
        headers = dict(request.scope["headers"])
        identity = self._keys.identify(headers.get(b"authorization"), headers.get(b"x-api-key"))
        deed = need.deed_of(identity)
        if deed is not None:
            namespace = "" if need.reach == "everybody's" else identity.namespace
            begin_note(request, identity, self._clock, deed, f"{request.method} {path}", namespace)
        need.check(identity)
        request.state.identity = identity
        called_by(identity.caller)
        name_caller(request.scope, identity.caller)


def check_routes(routes: Sequence[BaseRoute], hot: Iterable[str]) -> None:
    """Raise LookupError naming a route that has no line in the table, or whose line nothing enforces."""
    guarded = frozenset(hot)
    for found in iter_route_contexts(routes):
        route = found.original_route
        if not isinstance(route, Route | APIRoute) or not found.methods:
            raise LookupError(f"{route}: api/access/routes.py knows HTTP routes only")
        for method in found.methods - {"HEAD"}:
            need = ACCESS.get((method, found.path or ""))
            if need is None:
                raise LookupError(f"{method} {found.path}: api/access/routes.py does not say who may use it")
            if need.key and not isinstance(route, APIRoute) and found.path not in guarded:
                raise LookupError(f"{method} {found.path}: no gate checks it")
