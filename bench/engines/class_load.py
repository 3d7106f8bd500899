"""Clients of two classes: users who come when they like, and rollouts that ask again as soon as they are answered.

    python -m bench class_load TARGET USERS_PER_S ROLLOUTS PRIORITY SEED SECONDS

Users arrive as a Poisson process of the given seed and read streams; ROLLOUTS connections ask for long answers with the
header `x-onward-priority: PRIORITY`, and wait as they are told where there is no room. Prints one JSON object: the
users' times to the first token, and how many tokens each class got."""

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import uvloop

_WORDS = ("read", "the", "file", "and", "say", "which", "of", "its", "functions", "can", "fail", "now")
_USER_TOKENS, _ROLLOUT_TOKENS = 24, 96
_USER_WORDS, _ROLLOUT_WORDS = 24, 48


@dataclass
class Heard:
    first_token_ms: list[float] = field(default_factory=list)
    user_tokens: int = 0
    rollout_tokens: int = 0
    refused: int = 0


def body_of(rng: random.Random, words: int, tokens: int, *, stream: bool) -> dict[str, Any]:
    said = " ".join(rng.choice(_WORDS) for _ in range(words))
    asked: dict[str, Any] = {"model": "onward-tiny", "messages": [{"role": "user", "content": said}]}
    return asked | {"max_tokens": tokens, "stream": stream}


async def user(http: aiohttp.ClientSession, url: str, rng: random.Random, heard: Heard) -> None:
    began_s, first_s, tokens = time.monotonic(), None, 0
    async with http.post(url, json=body_of(rng, _USER_WORDS, _USER_TOKENS, stream=True)) as response:
        response.raise_for_status()
        async for line in response.content:
            if b'"content":"' in line.replace(b" ", b"") and first_s is None:
                first_s = time.monotonic()
            tokens += line.startswith(b"data: {")
    if first_s is not None:
        heard.first_token_ms.append((first_s - began_s) * 1000)
    heard.user_tokens += tokens


async def rollout(http: aiohttp.ClientSession, url: str, rng: random.Random, priority: str, heard: Heard) -> None:
    while True:
        asked = body_of(rng, _ROLLOUT_WORDS, _ROLLOUT_TOKENS, stream=False)
        async with http.post(url, json=asked, headers={"x-onward-priority": priority}) as response:
            if response.status == 503:
                heard.refused += 1
                await response.read()
                await asyncio.sleep(float(response.headers["retry-after"]))
                continue
            response.raise_for_status()
            heard.rollout_tokens += (await response.json())["usage"]["completion_tokens"]


async def load(url: str, users_per_s: float, rollouts: int, priority: str, seed: int, seconds: float) -> Heard:
    heard, arrivals = Heard(), random.Random(seed)
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        filling = [
            asyncio.ensure_future(rollout(http, url, random.Random(seed * 1000 + place), priority, heard))
            for place in range(rollouts)
        ]
        users, ends_s = [], time.monotonic() + seconds
        while time.monotonic() < ends_s:
            await asyncio.sleep(arrivals.expovariate(users_per_s))
            users.append(asyncio.ensure_future(user(http, url, random.Random(arrivals.random()), heard)))
        await asyncio.gather(*users)
        for each in filling:
            each.cancel()
        await asyncio.gather(*filling, return_exceptions=True)
        failed = [each.exception() for each in filling if not each.cancelled()]
        if failed:
            raise SystemExit(f"rollouts failed: {failed[0]!r}")
    return heard


def main() -> None:
    url, users_per_s, rollouts, priority, seed, seconds = sys.argv[1:]
    heard = uvloop.run(load(url, float(users_per_s), int(rollouts), priority, int(seed), float(seconds)))
    print(json.dumps(asdict(heard)))


if __name__ == "__main__":
    main()
