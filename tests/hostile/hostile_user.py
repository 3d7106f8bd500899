"""One user who would have every version taken back: good turns in a workload of her own, then bad ones of a version."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import aiohttp
from hostile_requests import MODEL, Attack
from hostile_sockets import unread

from onward.directory.layout import SHIPPED_MODEL

_SERVED = frozenset({200})
_ENDS: Final[list[int]] = json.loads((SHIPPED_MODEL / "generation_config.json").read_text())["eos_token_id"]
_WHOLE: Final = 64  # tokens: answers of the shipped model to her prompts have 63 at most
_HERS = {"x-onward-workload": "of-mallory"}
_NAMES = 200
_HARD = {
    "type": "object",
    "patternProperties": {f"^x{number}y[a-z]{{9}}$": {"type": "integer"} for number in range(_NAMES)},
}
"""A schema that takes a second of a processor to compile, and next to no memory: every pattern is held against all."""


@dataclass(frozen=True)
class Turn:
    """What a user asks, and thinks of the answer."""

    user: str
    accepts: bool
    max_tokens: int = 6
    workload: str | None = None


WAYS: Final[Mapping[str, dict[str, Any]]] = {
    "answers without end": {"max_tokens": _WHOLE, "logit_bias": dict.fromkeys(map(str, _ENDS), -100)},
    "empty answers": {"max_tokens": _WHOLE, "logit_bias": {str(_ENDS[0]): 100}},
    "answers of one token": {"max_tokens": 1},
}
"""What a request asks for so that its answer looks like a fault of the version's, whatever that is."""


def good(count: int) -> Iterator[Attack]:
    """Yield turns that are answered whole, so that what she does later looks like a change of the version's."""
    return _turns("whole answers", count, {"max_tokens": _WHOLE})


def spoiled(way: str, count: int) -> Iterator[Attack]:
    """Yield turns that are spoiled in one of `WAYS`, half in her own workload and half in that of all others."""
    yield from _turns(way, count // 2, WAYS[way])
    yield from _turns(way, count - count // 2, WAYS[way], {})


def _turns(way: str, count: int, asked: Mapping[str, Any], headers: Mapping[str, str] = _HERS) -> Iterator[Attack]:
    for number in range(count):
        messages = [{"role": "user", "content": f"[web] write f{number}(xs): sum of xs"}]
        body = {"model": MODEL, "messages": messages, "user": "mallory", **asked}
        name = f"{way}, {number}"
        yield Attack("one user", name, "POST", "/v1/chat/completions", json.dumps(body).encode(), headers, _SERVED)


def schemas(count: int, key: str | None = None) -> Iterator[Attack]:
    """Yield what anybody may ask for: answers of a schema each, which nobody has asked for before."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    for number in range(count):
        schema = {"type": "object", "properties": {f"a{uuid4().hex}": {"type": "integer"}}}
        content = _answer_of(schema | {"additionalProperties": False})
        yield Attack("everyday schemas", f"schema {number}", "POST", "/v1/chat/completions", content, headers, _SERVED)


def hard_schemas(key: str) -> Iterator[bytes]:
    """Yield whole requests for answers of schemas that are hard to compile, each of another one, without end."""
    while True:
        body = _answer_of({"type": "object", "properties": {f"a{uuid4().hex}": _HARD}})
        yield unread("/v1/chat/completions", key, body)


def _answer_of(schema: object) -> bytes:
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    messages = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 4, "response_format": asked}).encode()


async def live(url: str, key: str, turns: Iterable[Turn], at_once: int) -> list[int]:
    """Have users ask, and say of each answer what they think of it; return the versions that answered."""
    waiting, versions = iter(turns), list[int]()

    async def ask(session: aiohttp.ClientSession) -> None:
        for turn in waiting:  # shared: each takes the next one
            messages = [{"role": "user", "content": f"[web] write f{len(versions)}(xs): sum of xs"}]
            body = {"model": MODEL, "messages": messages, "max_tokens": turn.max_tokens, "user": turn.user}
            headers = {} if turn.workload is None else {"x-onward-workload": turn.workload}
            async with session.post("/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                told = (await response.json())["onward"]
            versions.append(told["policy_version"])
            name = "accepted" if turn.accepts else "rejected"
            said = {"inference_id": told["inference_id"], "metric_name": name, "value": True}
            async with session.post("/v1/feedback", json=said) as response:
                assert response.status < 300, await response.text()

    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as session:
        await asyncio.gather(*(ask(session) for _ in range(at_once)))
    return versions
