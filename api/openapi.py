"""The parts of the OpenAPI document that FastAPI cannot see: bodies and answers that are msgspec structs."""

from collections.abc import Iterator
from typing import Any

import msgspec

from api.feedback.batches import FeedbackBatch
from api.feedback.body import FeedbackBody
from api.feedback.names import OutcomeList
from api.feedback.reports.continues import ContinueData
from api.feedback.reports.otlp.endpoint import LOGS, TRACES
from api.operator.accounts.consents import ConsentBody
from api.operator.accounts.keys import KeyBody, RevokeBody, RotateBody
from api.operator.alarms import AckBody, UnackBody
from api.operator.exclusions.routes import ExcludeBody, WishBody
from api.operator.policies import OrderBody
from api.operator.suites.drafts import AcceptBody, RejectBody, UndoBody
from api.protocols.anthropic.answers import MessageAnswer, TokenCount
from api.protocols.fim.llama_cpp import Infill, InfillBody
from api.protocols.fim.mistral import FimBody
from api.protocols.openai.answers import ChatChunk, ChatCompletion, TextCompletion
from api.protocols.responses.answers import Response
from api.protocols.tabby.completions import TabbyBody, TabbyCompletion
from api.protocols.tabby.routes import TabbyEvent
from api.requests.anthropic import CountBody, MessagesBody
from api.requests.bodies import ChatBody, CompletionBody
from api.requests.responses import ResponsesBody
from core.ids import PolicyRef

_GENERATING: dict[str, tuple[str, type, type, type]] = {
    "/v1/chat/completions": ("chat_completions", ChatBody, ChatCompletion, ChatChunk),
    "/v1/completions": ("completions", CompletionBody, TextCompletion, TextCompletion),
    "/v1/responses": ("responses", ResponsesBody, Response, Response),
    "/v1/messages": ("messages", MessagesBody, MessageAnswer, MessageAnswer),
    "/v1/fim/completions": ("fim_completions", FimBody, ChatCompletion, ChatChunk),
    "/infill": ("infill", InfillBody, Infill, Infill),
    "/tabby/v1/completions": ("tabby_completions", TabbyBody, TabbyCompletion, TabbyCompletion),
}
"""Of each route: its name, and the structs of its body, of its answer, and of the parts of a streamed one."""
_OF_DRAFTS = (AcceptBody, RejectBody, UndoBody)
_OF_OPERATORS = (OrderBody, WishBody, ExcludeBody, AckBody, UnackBody, KeyBody, RotateBody, RevokeBody, *_OF_DRAFTS)
_OF_USERS = (FeedbackBody, FeedbackBatch, ConsentBody)
_OTHERS = (CountBody, TokenCount, OutcomeList, ContinueData, TabbyEvent, *_OF_USERS, *_OF_OPERATORS)
_FOREIGN = (*(body for _, body, _, _ in _GENERATING.values()), CountBody, ContinueData, TabbyEvent)
"""The bodies in whose whole depth fields that nobody knows are ignored by name (`api/http/foreign.py`)."""
_STRUCTS = (*dict.fromkeys(struct for _, *structs in _GENERATING.values() for struct in structs), *_OTHERS)
_SESSION_HEADERS = {
    "X-Session-Id": "The session of this turn; inferred from the messages when absent",
    "X-Turn-Type": "main, side or summary",
    "X-Session-Done": "true: no more turns will come",
    "x-onward-workload": "What the turn is for; chat or suggestion when absent",
    "x-onward-learn": "false: do not learn from this turn",
    "x-onward-store": "false: store none of its words, and do not learn from it",
    "x-onward-processing-purpose": "What the turn is processed for, of the purposes that its namespace states",
    "x-onward-strict": "true: refuse the request if anything in it would be ignored",
    "x-onward-environment": "production or simulated",
    "x-onward-priority": "low: nobody waits for it, and it gives way to whoever is waited for; normal when absent",
    "x-onward-environment-image": "Digest of the image that the turn's tools run in: sha256:…",
    "x-onward-harness": "Version of the client that made the prompt",
}
_ANSWER_HEADERS = {
    "x-onward-inference-id": "The id that feedback names; for several choices, joined by commas",
    "x-request-id": "The same id, or that of the group of several choices: clients export it with what users did",
    "x-onward-session-id": "The session that this turn is in",
    "x-onward-policy-version": "The version that sampled the first token",
    "x-onward-arm": "live, canary or holdback: which version the user is served by",
    "x-onward-trainable": "Whether the turn can be trained on; while streaming, as far as the first token tells",
    "x-onward-untrainable-reasons": "The reasons why it cannot be trained on, joined by commas",
    "x-onward-ignored": "The fields of the request that change nothing, joined by commas",
    "x-onward-sampling-overridden": "The sampling fields that the workload's settings changed, joined by commas",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}

_STATUS = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
}


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """Return `document` with the generating routes, the schemas and the error shape added."""
    _, schemas = msgspec.json.schema_components(
        _STRUCTS, schema_hook=_own_type, ref_template="#/components/schemas/{name}"
    )
    for name in _within([struct.__name__ for struct in _FOREIGN], schemas):
        schemas[name].pop("additionalProperties", None)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.update({**schemas, "Error": _ERROR, "Status": _STATUS})
    paths = document["paths"]
    for path, (name, body, answer, chunk) in _GENERATING.items():
        paths[path] = {"post": _operation(name, body, answer, chunk)}
    for path, what in ((LOGS, "log records"), (TRACES, "spans")):
        paths[path] = {"post": _export(path.rpartition("/")[2], what)}
    for operations in paths.values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # refused requests get a 400 here
            error = operation.pop("x-error", "Error")
            operation["responses"]["4XX"] = _content("The request is at fault", {"application/json": error})
            operation["responses"]["5XX"] = _content("The service is at fault", {"application/json": error})
    return document


def _within(names: list[str], schemas: dict[str, Any]) -> set[str]:
    """Return the names of these schemas, and of all that they refer to."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            names += [each.rpartition("/")[2] for each in _references(schemas[name])]
    return found


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _references(each)


def _own_type(kind: type) -> dict[str, Any]:
    """Return the schema of a version: the base policy's are numbers."""
    if kind is PolicyRef:
        return {"type": "integer"}
    raise NotImplementedError(f"{kind.__name__} has no schema")


def _operation(name: str, body: type, answer: type, chunk: type) -> dict[str, Any]:
    headers = [
        {"name": header, "in": "header", "required": False, "description": meaning, "schema": {"type": "string"}}
        for header, meaning in _SESSION_HEADERS.items()
    ]
    answered = {
        name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in _ANSWER_HEADERS.items()
    }
    contents = {"application/json": answer.__name__, "text/event-stream": chunk.__name__}
    response = _content("The answer; with `stream`, its chunks as server-sent events", contents)
    return {
        "operationId": name,
        "tags": ["generation"],
        "summary": (body.__doc__ or "").strip(),
        "parameters": headers,
        "requestBody": {"required": True, **_content("", {"application/json": body.__name__})},
        "responses": {"200": {**response, "headers": answered}},
    }


def _export(name: str, what: str) -> dict[str, Any]:
    """Return the operation of an OpenTelemetry export; its protobuf forms are those of opentelemetry-proto."""
    forms = {"application/x-protobuf": {}, "application/json": {"schema": {"type": "object"}}}
    return {
        "operationId": f"export_{name}",
        "tags": ["feedback"],
        "summary": f"OTLP over HTTP: {what} of editors and agents; what users did becomes outcomes",
        "requestBody": {"required": True, "content": forms},
        "responses": {"200": {"description": "Taken; `partial_success` says what was not", "content": forms}},
        "x-error": "Status",
    }


def _content(description: str, schemas: dict[str, str]) -> dict[str, Any]:
    content = {kind: {"schema": {"$ref": f"#/components/schemas/{name}"}} for kind, name in schemas.items()}
    return {"description": description, "content": content} if description else {"content": content}
