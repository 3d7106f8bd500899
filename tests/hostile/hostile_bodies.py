"""Bodies of about four MiB, each costly to read in its own way; all are within the service's size limit."""

import gzip
import json
import random
from collections.abc import Iterator

from hostile_requests import CHAT, FEEDBACK, MESSAGES, MODEL, SERVED, Attack

SIZE = (4 << 20) - 4_096
ROUNDS = 3
REFUSED_OR_FULL = frozenset(range(400, 500)) | {503}


def large_bodies() -> Iterator[Attack]:
    """Yield the attacks, enough of them to keep twenty in flight."""
    chance = random.Random(0)
    for _ in range(ROUNDS):
        for name, body in _bodies(chance):
            path = FEEDBACK if name.startswith("feedback") else CHAT
            yield Attack("large bodies", name, "POST", path, body, answers=REFUSED_OR_FULL)
        yield from _exports()


def _exports() -> Iterator[Attack]:
    """Yield exports of a few kilobytes that are large once they are decompressed."""
    spans = _field(1, _field(2, b"\x12\0" * (SIZE // 2 - 100)))
    attribute = _field(9, _field(1, b"gen_ai.conversation.id") + _field(2, _field(1, b"c" * (SIZE - 200))))
    answered = _field(9, _field(1, b"gen_ai.response.id") + _field(2, _field(1, b"chatcmpl-x")))
    named = _field(1, _field(2, _field(2, attribute + answered)))
    sent = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    for name, body in (("empty spans", spans), ("a long name", named)):
        content = gzip.compress(body, mtime=0)
        yield Attack("exports", name, "POST", "/v1/traces", content, sent, REFUSED_OR_FULL | SERVED)


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def _bodies(chance: random.Random) -> Iterator[tuple[str, bytes]]:
    words = " ".join(str(chance.randrange(10**6)) for _ in range(SIZE // 8))[: SIZE - 1_000]
    yield "one text", _chat([{"role": "user", "content": words}])
    yield "one long word", _chat([{"role": "user", "content": "a" * (SIZE - 1_000)}])
    yield (
        "escapes",
        _chat([]).replace(b"[]", b'[{"role": "user", "content": "' + b"\\u00e9" * (SIZE // 6 - 100) + b'"}]'),
    )
    yield "tiny messages", _chat([{"role": "user", "content": "a"}] * (SIZE // 36))
    yield "empty objects", _chat([]).replace(b"[]", b"[" + b"{}," * (SIZE // 3 - 100) + b"{}]")
    yield "nested lists", _chat([]).replace(b"[]", b"[" * (SIZE // 2 - 100) + b"]" * (SIZE // 2 - 100))
    yield "many tools", _chat(MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}] * (SIZE // 52))
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(SIZE // 40)}}
    yield (
        "one wide schema",
        _chat(MESSAGES, tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}]),
    )
    yield "kept for each choice", _chat([{**MESSAGES[0], "name": "n" * (SIZE // 2)}], n=16)
    yield "metadata", _chat(MESSAGES, metadata={f"k{number}": "v" for number in range(SIZE // 20)})
    yield (
        "feedback's tags",
        json.dumps({"metric_name": "accepted", "value": True, "tags": {"a": "b" * (SIZE - 200)}}).encode(),
    )


def _chat(messages: object, **fields: object) -> bytes:
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 4, **fields}).encode()
    assert len(body) <= SIZE + 4_096
    return body
