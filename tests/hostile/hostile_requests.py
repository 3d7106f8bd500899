"""Requests that nobody should make, each with its right answers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hostile_values import ARGUMENTS, DEEP, LONG_NUMBER, NUMBERS, SCHEMAS, VALUES

CHAT, FEEDBACK = "/v1/chat/completions", "/v1/feedback"
MODEL = "onward-tiny"
MESSAGES = [{"role": "user", "content": "[web] write total(xs): sum of xs"}]
SERVED = frozenset({200})
ACCEPTED = frozenset({200, 201, 202})
REFUSED = frozenset(range(400, 500))
NOT_OURS = frozenset({401, 403, 404, 405})
ANY = SERVED | ACCEPTED | REFUSED
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "max_tokens",
    "n",
    "seed",
)
_CHAT_FIELDS = (
    "messages",
    "model",
    "stop",
    "logit_bias",
    "tools",
    "tool_choice",
    "user",
    "metadata",
    "session_id",
    "stream",
)
_PROTOCOLS: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "model": MODEL,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "[web] write total(xs): sum of xs"}]},
            {"type": "function_call", "call_id": "c", "name": "edit_file", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
        ],
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "edit_file", "parameters": {"type": "object"}}],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "include": [],
        "previous_response_id": None,
        "metadata": {"a": "b"},
        "max_output_tokens": 4,
        "temperature": 1,
        "stream": False,
    },
    "/v1/messages": {
        "model": MODEL,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "[web] write total(xs): sum of xs"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "edit_file", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "done"}]},
        ],
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "edit_file", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "output_config": {},
        "thinking": {"type": "disabled"},
        "metadata": {"user_id": "anna"},
        "stop_sequences": ["x"],
        "max_tokens": 4,
        "top_k": 4,
        "stream": False,
    },
    "/v1/fim/completions": {"model": MODEL, "prompt": "a", "suffix": "b", "stop": "x", "max_tokens": 4},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}], "n_predict": 4},
    "/tabby/v1/completions": {
        "language": "python",
        "segments": {"prefix": "a", "suffix": "b", "declarations": [{"filepath": "c", "body": "d"}]},
        "user": "anna",
        "temperature": 0.5,
        "seed": 7,
    },
    "/tabby/v1/events": {"type": "view", "completion_id": "cmpl-x", "choice_index": 0, "view_id": "v", "elapsed": 7},
    "/v1/continue/data": {"name": "editOutcome", "data": {"accepted": True, "completion": "x"}, "schema": "0.2.0"},
    "/v1/feedback/batch": {"feedback": [{"inference_id": "x", "metric_name": "accepted", "value": True}]},
}
"""A valid body for each route that translates another protocol."""
_FEEDBACK_FIELDS = (
    "inference_id",
    "session_id",
    "metric_name",
    "value",
    "feedback_id",
    "tags",
    "supersedes",
    "observed_at",
)
_IDS = (
    "%00",
    "..%2f..%2fetc%2fpasswd",
    "a" * 5_000,
    LONG_NUMBER,
    "-1",
    "1e9",
    "%ff%fe",
    "'%20or%201=1--",
    "%F0%9F%92%A9",
)
_EVIL_ORIGIN = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


@dataclass(frozen=True)
class Attack:
    """A hostile request; `answers` holds the statuses that are right for it."""

    kind: str
    name: str
    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    answers: frozenset[int] = REFUSED


def attacks(routes: Mapping[str, list[str]], key: Mapping[str, str]) -> Iterator[Attack]:
    """Yield all attacks but large bodies.

    `routes` maps the service's own paths to methods; `key` holds the headers of a plugin that may only chat and give
    feedback."""
    yield from _numbers()
    yield from _fields("chat fields", CHAT, _CHAT_FIELDS, {"model": MODEL, "messages": MESSAGES, "max_tokens": 4})
    yield from _fields("feedback fields", FEEDBACK, _FEEDBACK_FIELDS, {"metric_name": "accepted", "value": True})
    for path, whole in _PROTOCOLS.items():
        yield from _fields(f"{path} fields", path, tuple(whole), whole)
        yield from _depths(f"{path} within", path, whole)
    yield from _schemas()
    yield from _conversations()
    yield from _addresses(routes)
    yield from _others(routes, key)
    yield from _pages(routes)
    yield from _bodies()


def not_stored(canary: str) -> Iterator[Attack]:
    """Yield turns whose text must not be stored anywhere."""
    said = [{"role": "user", "content": f"[web] write {canary}(xs): sum of xs"}]
    call = {"id": "c", "type": "function", "function": {"name": canary, "arguments": json.dumps({"a": canary})}}
    called = [
        *said,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": canary},
    ]
    for number in range(20):
        body = {"model": MODEL, "messages": called if number % 3 == 2 else said, "max_tokens": 8, "store": False}
        body |= {"stream": number % 2 == 1, "user": f"stranger {number}"}
        yield Attack("not stored", "chat", "POST", CHAT, json.dumps(body).encode(), answers=SERVED)
    suggestion = {"model": MODEL, "prompt": f"def {canary}(", "max_tokens": 8, "store": False}
    yield Attack(
        "not stored", "completions", "POST", "/v1/completions", json.dumps(suggestion).encode(), answers=SERVED
    )
    refused = {"model": MODEL, "messages": said, "temperature": canary, "store": False}
    yield Attack("not stored", "refused", "POST", CHAT, json.dumps(refused).encode())


def _numbers() -> Iterator[Attack]:
    """Yield numbers of all kinds: those that would harm the engine are refused, and none causes a server error."""
    for name in _SAMPLING:
        for words, number in NUMBERS.items():
            body = _with({"model": MODEL, "messages": MESSAGES, "max_tokens": 4}, name, number)
            yield Attack("sampling numbers", f"{name}: {words}", "POST", CHAT, body, answers=ANY)


def _fields(kind: str, path: str, names: tuple[str, ...], whole: Mapping[str, Any]) -> Iterator[Attack]:
    for name in names:
        for words, value in VALUES.items():
            yield Attack(kind, f"{name}: {words}", "POST", path, _with(whole, name, value), answers=ANY)


def _depths(kind: str, path: str, whole: Mapping[str, Any]) -> Iterator[Attack]:
    """Yield each value in place of each value that lies deeper within the body."""
    for place in _places(whole):
        for words, value in VALUES.items():
            marked = json.dumps(_replaced(whole, place)).encode()
            raw = value if isinstance(value, bytes) else value.encode()
            body = marked.replace(b'"<here>"', raw)
            yield Attack(kind, f"{'.'.join(map(str, place))}: {words}", "POST", path, body, answers=ANY)


def _places(whole: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where values lie that are no part of the body itself but of its parts."""
    inner = whole.items() if isinstance(whole, dict) else enumerate(whole) if isinstance(whole, list) else ()
    for name, value in inner:
        if before:
            yield (*before, name)
        yield from _places(value, (*before, name))


def _replaced(whole: Any, place: tuple[Any, ...]) -> Any:
    if not place:
        return "<here>"
    copied = whole.copy()
    copied[place[0]] = _replaced(whole[place[0]], place[1:])
    return copied


def _schemas() -> Iterator[Attack]:
    for name, schema in SCHEMAS.items():
        tool = {"type": "function", "function": {"name": "edit_file", "parameters": schema}}
        body = {"model": MODEL, "messages": MESSAGES, "tools": [tool], "max_tokens": 8}
        yield Attack("tool schemas", name, "POST", CHAT, json.dumps(body).encode(), answers=ANY)
        answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = {"model": MODEL, "messages": MESSAGES, "response_format": answer, "max_tokens": 8}
        yield Attack("answer schemas", name, "POST", CHAT, json.dumps(body).encode(), answers=ANY)


def _conversations() -> Iterator[Attack]:
    """Yield conversations with odd words of tools and of earlier answers, in all places."""
    for name, words in ARGUMENTS.items():
        for tool in ("edit_file", "run_tests", "read_file"):
            call = {"id": "c", "type": "function", "function": {"name": tool, "arguments": words[:100_000]}}
            said = [
                *MESSAGES,
                {"role": "assistant", "content": words[:1_000], "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": words[:1_000]},
            ]
            body = {"model": MODEL, "messages": said, "max_tokens": 4}
            yield Attack("conversations", f"{tool}: {name}", "POST", CHAT, json.dumps(body).encode(), answers=ANY)


def _addresses(routes: Mapping[str, list[str]]) -> Iterator[Attack]:
    """Yield each route with each odd id, and with odd numbers in queries and headers."""
    for path, methods in routes.items():
        for method in methods:
            body = b"{}" if method == "POST" else None
            for odd in _IDS if "{" in path else ():
                yield Attack("odd ids", f"{method} {path}", method, _filled(path, odd), body)
            for query in (f"limit={LONG_NUMBER}", "limit=-1", "before=%00", "after=NaN", "since=" + "9" * 30):
                # While a busy machine takes its time over a swap, the service rightly says that it is not ready.
                right = ANY | {503} if path == "/readyz" else ANY
                address = f"{_filled(path, 'x')}?{query}"
                yield Attack("odd queries", f"{method} {path}?", method, address, body, answers=right)
    for odd in (LONG_NUMBER, "-1", "1e9", "x", "9" * 30):
        headers = {"Last-Event-ID": odd}
        yield Attack("odd ids", "Last-Event-ID", "GET", "/v1/rewards/stream", None, headers)


def _others(routes: Mapping[str, list[str]], key: Mapping[str, str]) -> Iterator[Attack]:
    """Yield orders and other users' data with a plugin's key, and every route with an unknown key."""
    for path, methods in routes.items():
        for method in methods:
            body = b"{}" if method == "POST" else None
            if method == "POST" and ("policies" in path or "alarms" in path):
                yield Attack("orders of plugins", path, method, _filled(path, "1"), body, key, NOT_OURS)
            if path.startswith("/v1/"):
                unknown = {"Authorization": "Bearer of-nobody-at-all"}
                yield Attack("unknown keys", f"{method} {path}", method, _filled(path, "1"), body, unknown, NOT_OURS)


def _pages(routes: Mapping[str, list[str]]) -> Iterator[Attack]:
    """Yield the requests that a web page can make a browser send."""
    for path, methods in routes.items():
        if "POST" in methods:
            yield Attack("other sites", path, "POST", _filled(path, "1"), b"{}", _EVIL_ORIGIN)
            form = {"Content-Type": "text/plain"}
            yield Attack("forms", path, "POST", _filled(path, "1"), b"{}", form)


def _bodies() -> Iterator[Attack]:
    for name, body in {
        "nothing": b"",
        "no JSON": b"\xff\xfe\x00",
        "deep": DEEP.encode(),
        "a number": LONG_NUMBER.encode(),
        "a list": b"[]",
        "twice the same field": b'{"model": "a", "model": "b"}',
    }.items():
        for path in (CHAT, "/v1/completions", FEEDBACK, *_PROTOCOLS, "/v1/messages/count_tokens"):
            yield Attack("odd bodies", f"{path}: {name}", "POST", path, body)


def _with(whole: Mapping[str, Any], name: str, value: str | bytes) -> bytes:
    """Return JSON with one field replaced by raw text, valid or not."""
    fields = [f"{json.dumps(key)}: {json.dumps(each)}".encode() for key, each in whole.items() if key != name]
    raw = value if isinstance(value, bytes) else value.encode()
    return b"{" + b", ".join([*fields, json.dumps(name).encode() + b": " + raw]) + b"}"


def _filled(path: str, odd: str) -> str:
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + odd + rest.partition("}")[2]
    return path
