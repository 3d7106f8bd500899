"""Every route of the service with all the places in which a request may name what is another organisation's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

from api_harness import MODEL
from planted_organisations import Names

_WHY: Final = "a test"
_NOW_NS: Final = "1767312000000000000"
_SAYS: Final = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Ask:
    """One request; `body` of None sends none."""

    path: str
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def sent(self) -> str:
        return f"{unquote(self.path)} {self.body} {self.query} {self.headers}"


Asks = Callable[[Names], Iterator[Ask]]


def _plain(path: str, *, of_policy: bool = False, **queries: str) -> Asks:
    """Ask for a list: as it is, with each of these parameters, and with those that it might mistake for its own."""

    def asks(of: Names) -> Iterator[Ask]:
        yield Ask(path)
        yield from (Ask(path, query={name: getattr(of, what)}) for name, what in queries.items())
        yield Ask(path, query={"policy" if of_policy else "namespace": of.policy if of_policy else of.namespace})

    return asks


def _at(path: str, *names: str, query: Sequence[str] = (), body: Any = None) -> Asks:
    """Ask for one thing by each of these names; and again with `namespace` in the query, where the route knows it."""

    def asks(of: Names) -> Iterator[Ask]:
        for name in names:
            full = path.format(quote(getattr(of, name), safe=""))
            yield Ask(full, body)
            yield from (Ask(full, body, {each: getattr(of, each)}) for each in query)

    return asks


def _post(path: str, *bodies: Callable[[Names], Any]) -> Asks:
    return lambda of: (Ask(path, body(of)) for body in bodies)


def _once(path: str, body: Any = None) -> Asks:
    return lambda of: iter([Ask(path, body)])


def _generates(path: str, body: dict[str, Any]) -> Asks:
    """Ask the model in a session of theirs, as their user, for their workload, and by each header that names one."""

    def asks(of: Names) -> Iterator[Ask]:
        tags = {} if path in _WITHOUT_TAGS else {"metadata": {"workload": of.workload}}
        yield Ask(path, {**body, "user": of.user, "session_id": of.session_id, **tags})
        for name in ("x-session-id", "thread-id"):
            yield Ask(path, body, headers={name: of.stored_session})

    return asks


def _responses(of: Names) -> Iterator[Ask]:
    path, asked = "/v1/responses", {"model": MODEL, "input": "hi"}
    yield from _generates(path, asked)(of)
    for name in (of.inference_id, of.stored_id):
        yield Ask(path, {**asked, "previous_response_id": f"resp_{name}"})
        for kind in ("msg", "rs", "fc"):
            item = {"type": "item_reference", "id": f"{kind}_{name}"}
            yield Ask(path, {**asked, "input": [item, {"role": "user", "content": "hi"}]})


def _feedback(of: Names) -> Iterator[dict[str, Any]]:
    """Vote on what is theirs, in every way that the body knows."""
    for name in (of.inference_id, of.stored_id, f"chatcmpl-{of.inference_id}"):
        yield {"inference_id": name, "metric_name": "accepted", "value": False}
    said = {"inference_id": of.inference_id, "metric_name": "comment", "value": "no"}
    yield {**said, "user": of.user}
    yield {**said, "supersedes": of.feedback_id}
    yield {**said, "inference_id": of.stored_id, "tool_call_id": of.call_id}
    yield {"inference_id": of.inference_id, "metric_name": "edited", "final_text": "other words"}
    yield {"session_id": of.session_id, "metric_name": "shipped", "value": False}


def _exclusions(of: Names) -> Iterator[dict[str, Any]]:
    """Select what is theirs, in every way that the body knows; also all of it."""
    for criterion, name in (
        ("users", of.user), ("users", of.user_hash), ("sessions", of.session_id), ("turns", of.inference_id),
        ("turns", of.stored_id), ("keys", of.key_name), ("workloads", of.workload),
    ):  # fmt: skip
        yield {criterion: [name]}
        yield {criterion: [name], "namespace": of.namespace}
    yield {"until": "2020-01-01T00:00:00Z", "namespace": of.namespace}
    yield {"until": "2020-01-01T00:00:00Z"}


def _erasures(of: Names) -> Iterator[dict[str, Any]]:
    for what in ({"user": of.user}, {"user": of.user_hash}, {"session": of.session_id}):
        yield what
        yield {**what, "namespace": of.namespace}
    yield {"namespace": of.namespace}
    yield {"organisation": of.policy}


def _continued(of: Names) -> Iterator[dict[str, Any]]:
    for name, data in (
        ("chatFeedback", {"feedback": False, "completionId": of.inference_id}),
        ("toolUsage", {"accepted": False, "toolCallId": of.call_id}),
        ("editOutcome", {"accepted": False, "completion": f"{of.namespace} says"}),
        ("chatInteraction", {"completionId": of.stored_id}),
    ):
        yield {"name": name, "data": {**data, "sessionId": of.session_id}}


def _tabby(of: Names) -> Iterator[dict[str, Any]]:
    for kind in ("view", "select", "dismiss"):
        yield {"type": kind, "completion_id": f"cmpl-{of.inference_id}", "choice_index": 0}
    yield {"type": "select", "completion_id": f"cmpl-{of.stored_id}", "choice_index": 0, "select_kind": "line"}


def _values(**named: str) -> list[dict[str, Any]]:
    return [{"key": name.replace("__", "."), "value": {"stringValue": text}} for name, text in named.items()]


def _logs(of: Names) -> Iterator[dict[str, Any]]:
    """Tell by each form of clue that a user took what they were answered."""
    for event, data in (
        ("copilot_chat.edit.feedback", {"outcome": "accepted", "request_id": of.inference_id}),
        ("codex.tool_decision", {"decision": "approved", "source": "user", "call_id": of.call_id}),
        ("claude_code.tool_decision", {"decision": "accept", "source": "user_reject", "session__id": of.session_id}),
        ("gen_ai.evaluation.result", {"gen_ai__evaluation__name": "accepted", "gen_ai__response__id": of.stored_id}),
    ):
        record = {"timeUnixNano": _NOW_NS, "body": {"stringValue": event}, "attributes": _values(**data)}
        yield {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}


def _traces(of: Names) -> Iterator[dict[str, Any]]:
    """Claim that names of our own belong to an answer of theirs."""
    for own in (of.inference_id, f"chatcmpl-{of.stored_id}"):
        named = _values(
            copilot_chat__server_request_id=own, gen_ai__response__id=own, gen_ai__conversation__id=of.session_id
        )
        span = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "chat", "kind": 3}
        span |= {"startTimeUnixNano": _NOW_NS, "endTimeUnixNano": _NOW_NS, "attributes": named}
        yield {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def _all(path: str, bodies: Callable[[Names], Iterator[Any]], **more: Any) -> Asks:
    return lambda of: (Ask(path, {**body, **more}) for body in bodies(of))


_CONSENT: Final = {"learn": False, "why": _WHY}
_WITHOUT_TAGS: Final = ("/infill",)
_MESSAGES: Final = {"model": MODEL, "messages": _SAYS}
_ORDERS: Final = ("promote", "rollback", "hold", "unhold", "pin", "unpin")
GENERATING: Final[Mapping[tuple[str, str], Asks]] = {
    ("POST", "/v1/chat/completions"): _generates("/v1/chat/completions", _MESSAGES),
    ("POST", "/v1/completions"): _generates("/v1/completions", {"model": MODEL, "prompt": "hi"}),
    ("POST", "/v1/responses"): _responses,
    ("POST", "/v1/messages"): lambda of: (
        Ask("/v1/messages", {**_MESSAGES, "max_tokens": 9, "metadata": {"user_id": name}})
        for name in (of.user, f"user_{of.user}_account__session_{of.session_id}")
    ),
    ("POST", "/v1/fim/completions"): _generates("/v1/fim/completions", {"model": MODEL, "prompt": "hi"}),
    ("POST", "/infill"): _generates("/infill", {"input_prefix": "hi", "input_suffix": ""}),
    ("POST", "/tabby/v1/completions"): lambda of: iter(
        [Ask("/tabby/v1/completions", {"segments": {"prefix": "hi"}, "user": of.user})]
    ),
}
"""The routes that make turns: last, since what they make is the caller's own, under names that others have, too."""
ROUTES: Final[Mapping[tuple[str, str], Asks]] = {
    ("GET", "/"): _once("/"),
    ("GET", "/console/{name:path}"): _at("/console/{}", "session_id"),
    ("GET", "/signin/begin"): _once("/signin/begin"),
    ("GET", "/signin/done"): _once("/signin/done"),
    ("POST", "/signin/end"): _once("/signin/end", {}),
    ("GET", "/v1/me"): _plain("/v1/me"),
    ("GET", "/docs"): _once("/docs"),
    ("GET", "/docs/{path:path}"): _at("/docs/{}", "session_id"),
    ("GET", "/openapi.json"): _once("/openapi.json"),
    ("GET", "/healthz"): _once("/healthz"),
    ("GET", "/health"): _once("/health"),
    ("GET", "/readyz"): _once("/readyz"),
    ("GET", "/metrics"): _once("/metrics"),
    ("GET", "/v1/models"): _plain("/v1/models", of_policy=True),
    ("GET", "/v1/models/{model:path}"): _at("/v1/models/{}", "policy", "version"),
    ("GET", "/v1/responses/{response_id}"): lambda of: (
        Ask(f"/v1/responses/{kind}{name}") for kind in ("resp_", "") for name in (of.inference_id, of.stored_id)
    ),
    ("POST", "/v1/messages/count_tokens"): _once("/v1/messages/count_tokens", _MESSAGES),
    ("POST", "/v1/sessions/{session_id:path}/end"): _at("/v1/sessions/{}/end", "session_id", "stored_session", body={}),
    ("PUT", "/v1/users/{user:path}/consent"): _at("/v1/users/{}/consent", "user", "user_hash", body=_CONSENT),
    ("GET", "/v1/users/{user:path}/consent"): _at("/v1/users/{}/consent", "user", "user_hash"),
    ("PUT", "/v1/sessions/{session_id:path}/consent"): _at(
        "/v1/sessions/{}/consent", "session_id", "stored_session", body={"store": False, "why": _WHY}
    ),
    ("GET", "/v1/sessions/{session_id:path}/consent"): _at("/v1/sessions/{}/consent", "session_id", "stored_session"),
    ("GET", "/v1/outcomes"): _plain("/v1/outcomes"),
    ("POST", "/v1/feedback"): _all("/v1/feedback", _feedback),
    ("POST", "/v1/feedback/batch"): lambda of: iter([Ask("/v1/feedback/batch", {"feedback": [*_feedback(of)]})]),
    ("POST", "/v1/continue/data"): _all("/v1/continue/data", _continued),
    ("GET", "/tabby/v1/health"): _plain("/tabby/v1/health"),
    ("GET", "/tabby/v1beta/server_setting"): _plain("/tabby/v1beta/server_setting"),
    ("POST", "/tabby/v1/events"): _all("/tabby/v1/events", _tabby),
    ("POST", "/v1/logs"): _all("/v1/logs", _logs),
    ("POST", "/v1/traces"): _all("/v1/traces", _traces),
    ("DELETE", "/v1/feedback/{feedback_id:path}"): _at("/v1/feedback/{}", "feedback_id"),
    ("GET", "/v1/feedback/{feedback_id:path}"): _at("/v1/feedback/{}", "feedback_id"),
    ("GET", "/v1/sessions"): _plain("/v1/sessions", session="session_id", user="user_hash", workload="workload"),
    ("GET", "/v1/sessions/{session_id:path}"): _at("/v1/sessions/{}", "session_id", "stored_session"),
    ("GET", "/v1/turns/{inference_id}"): _at("/v1/turns/{}", "inference_id", "stored_id"),
    ("GET", "/v1/rewards/{inference_id}"): _at("/v1/rewards/{}", "inference_id", "stored_id"),
    ("GET", "/v1/rewards"): _plain("/v1/rewards"),
    ("GET", "/v1/rewards/stream"): lambda of: iter([Ask("/v1/rewards/stream", query={"after": "0"})]),
    ("GET", "/v1/curves"): _plain("/v1/curves", workload="workload"),
    ("GET", "/v1/behaviour"): _plain("/v1/behaviour", workload="workload"),
    ("GET", "/v1/frontier"): _plain("/v1/frontier", workload="workload"),
    ("GET", "/v1/improvement"): _plain("/v1/improvement"),
    ("GET", "/v1/clients"): _plain("/v1/clients"),
    ("GET", "/v1/alarms"): _plain("/v1/alarms"),
    ("POST", "/v1/alarms/{alarm_id}/ack"): _at("/v1/alarms/{}/ack", "alarm_id", body={"note": _WHY}),
    ("GET", "/v1/exclusions"): _plain("/v1/exclusions"),
    ("POST", "/v1/exclusions/preview"): _all("/v1/exclusions/preview", _exclusions),
    ("POST", "/v1/exclusions"): _all("/v1/exclusions", _exclusions, why=_WHY),
    ("POST", "/v1/exclusions/{exclusion_id}/lift"): _at("/v1/exclusions/{}/lift", "exclusion_id", body={"why": _WHY}),
    ("GET", "/v1/erasures"): _plain("/v1/erasures"),
    ("GET", "/v1/erasures/{erasure_id}"): _at("/v1/erasures/{}", "erasure_id"),
    ("POST", "/v1/erasures/preview"): _all("/v1/erasures/preview", _erasures),
    ("DELETE", "/v1/users/{user:path}"): _at("/v1/users/{}", "user", "user_hash", query=("namespace",)),
    ("DELETE", "/v1/namespaces/{namespace:path}"): _at("/v1/namespaces/{}", "namespace"),
    ("DELETE", "/v1/organisations/{policy}"): _at("/v1/organisations/{}", "policy"),
    ("DELETE", "/v1/sessions/{session_id:path}"): _at(
        "/v1/sessions/{}", "session_id", "stored_session", query=("namespace",)
    ),
    ("GET", "/v1/suite/drafts"): _plain("/v1/suite/drafts"),
    ("POST", "/v1/suite/drafts/{draft_id}"): _at("/v1/suite/drafts/{}", "draft_id", body={"verdict": "refuse"}),
    ("GET", "/v1/audit"): _plain("/v1/audit"),
    ("GET", "/v1/audit/head"): _plain("/v1/audit/head"),
    ("GET", "/v1/quotas"): _plain("/v1/quotas"),
    ("GET", "/v1/costs"): _plain("/v1/costs"),
    ("GET", "/v1/keys"): _plain("/v1/keys"),
    ("POST", "/v1/keys"): _post("/v1/keys", lambda of: {"namespace": of.namespace, "name": f"{of.key_name}-new"}),
    ("POST", "/v1/keys/{key_id}/revoke"): _at("/v1/keys/{}/revoke", "key_id", body={}),
    ("POST", "/v1/keys/{key_id}/rotate"): _at("/v1/keys/{}/rotate", "key_id", body={}),
    ("GET", "/v1/organisations"): _plain("/v1/organisations"),
    ("GET", "/v1/clusters"): _plain("/v1/clusters"),
    ("GET", "/v1/policies"): _plain("/v1/policies", of_policy=True),
    ("GET", "/v1/releases"): _plain("/v1/releases", of_policy=True),
    ("GET", "/v1/experiments"): _plain("/v1/experiments", of_policy=True),
    ("GET", "/v1/fleet"): _plain("/v1/fleet", of_policy=True),
    ("GET", "/v1/status"): _plain("/v1/status", of_policy=True),
    ("GET", "/v1/stages"): _plain("/v1/stages"),
    ("GET", "/v1/serving"): _plain("/v1/serving"),
    ("GET", "/v1/policies/{version}/rollback"): _at("/v1/policies/{}/rollback", "version"),
    **{
        ("POST", f"/v1/policies/{{version}}/{each}"): _at(f"/v1/policies/{{}}/{each}", "version", body={"why": _WHY})
        for each in _ORDERS
    },
    **GENERATING,
}
"""All routes, each with what a request of it may name. A new route has no line here, and fails a test until it has."""
