"""Names that are longer than anybody's, in every place that takes one."""

import json
from collections.abc import Iterator
from typing import Any

from hostile_requests import CHAT, FEEDBACK, MESSAGES, MODEL, REFUSED, SERVED, Attack

LENGTHS = (600, 60_000, 1 << 20)
_MOST_IN_A_HEADER = 60_000
_HEADERS = {"x-session-id": REFUSED, "x-onward-workload": REFUSED, "x-onward-harness": REFUSED, "thread-id": SERVED}
"""Those by which a client names something, and the right answers; of a hint that is none nothing is said."""


def long_names() -> Iterator[Attack]:
    for length in LENGTHS:
        name = "n" * length
        for field, (body, right) in _chats(name).items():
            yield _attack(f"{field} of {length}", CHAT, {"model": MODEL, "max_tokens": 4, **body}, right)
        for field, said in _feedback(name).items():
            body = {"inference_id": "x", "metric_name": "accepted", "value": True, **said}
            yield _attack(f"feedback's {field} of {length}", FEEDBACK, body, REFUSED)
        said = {"name": name, "data": {"accepted": True}, "schema": "0.2.0"}
        yield _attack(f"an event's name of {length}", "/v1/continue/data", said, REFUSED)
        chat = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4}
        for header, right in _HEADERS.items() if length <= _MOST_IN_A_HEADER else ():
            in_head = right if length < 1_000 else right | REFUSED  # of headers that are too large together
            yield _attack(f"{header} of {length}", CHAT, chat, in_head, {header: name})


def _chats(name: str) -> dict[str, tuple[dict[str, Any], frozenset[int]]]:
    """Return chats that differ from an ordinary one by a name, and the right answers."""
    said = {"messages": MESSAGES}
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    call = {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": name, "content": "x"}]
    return {
        "session_id": ({**said, "session_id": name}, REFUSED),
        "user": ({**said, "user": name}, SERVED),
        "workload": ({**said, "metadata": {"workload": name}}, REFUSED),
        "a tag": ({**said, "metadata": {name: "v"}}, REFUSED),
        "a tag's value": ({**said, "metadata": {"k": name}}, REFUSED),
        "a tool": ({**said, "tools": [tool]}, REFUSED),
        "a call": ({"messages": [*MESSAGES, *called]}, SERVED | REFUSED),
        "model": ({**said, "model": name}, REFUSED),
    }


def _feedback(name: str) -> dict[str, dict[str, Any]]:
    fields = ("inference_id", "metric_name", "feedback_id", "supersedes", "tool_call_id", "user")
    return {
        **{field: {field: name} for field in fields},
        "session_id": {"inference_id": None, "session_id": name},
        "tag": {"tags": {name: "v"}},
        "tag's value": {"tags": {"k": name}},
    }


def _attack(
    name: str, path: str, body: dict[str, Any], right: frozenset[int], headers: dict[str, str] | None = None
) -> Attack:
    return Attack("long names", name, "POST", path, json.dumps(body).encode(), headers or {}, right)
