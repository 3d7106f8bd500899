"""One user who would have every version taken back: good turns in a workload of her own, then bad ones of a version."""

import json
from collections.abc import Iterator

from hostile_requests import MODEL, Attack

_SERVED = frozenset({200})


def good(count: int) -> Iterator[Attack]:
    """Yield turns that are answered whole, so that what she does later looks like a change of the version's."""
    return _turns(count, 64)


def cut_short(count: int) -> Iterator[Attack]:
    return _turns(count, 1)


def _turns(count: int, max_tokens: int) -> Iterator[Attack]:
    for number in range(count):
        messages = [{"role": "user", "content": f"[web] write f{number}(xs): sum of xs"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "user": "mallory"}
        headers = {"x-onward-workload": "of-mallory"}
        name = f"{max_tokens} tokens, {number}"
        yield Attack("one user", name, "POST", "/v1/chat/completions", json.dumps(body).encode(), headers, _SERVED)


def schemas(count: int) -> Iterator[Attack]:
    """Yield what anybody may ask for: answers of a schema each."""
    for number in range(count):
        schema = {"type": "object", "properties": {f"a{number}": {"type": "integer"}}, "additionalProperties": False}
        asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": MODEL, "messages": messages, "max_tokens": 4, "response_format": asked}
        content = json.dumps(body).encode()
        yield Attack("everyday schemas", f"schema {number}", "POST", "/v1/chat/completions", content, {}, _SERVED)
