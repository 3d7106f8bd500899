"""The other users of a service under attack, in a process of their own.

    python hostile_crowd.py URL OUTPUT   (the key in ONWARD_CROWD_KEY)

They chat, give feedback and measure latencies. At SIGTERM they stop and write down what was acknowledged to them."""

import asyncio
import json
import os
import random
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import aiohttp

USERS = 3
THINKS_S = 0.15
PATIENCE_S = 120.0


class Crowd:
    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._over = asyncio.Event()
        self.taken: list[tuple[float, float]] = []
        """The start (wall clock) and the seconds to the answer of each request."""
        self.turns: list[str] = []
        self.outcomes: dict[str, str] = {}
        self.failures: list[str] = []

    async def work(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._over.set)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            await asyncio.gather(*(self._user(session, number) for number in range(USERS)))

    async def _user(self, session: aiohttp.ClientSession, number: int) -> None:
        chance = random.Random(number)
        while not self._over.is_set():
            content = f"[web] write f{chance.randrange(1000)}(xs): sum of xs"
            messages = [{"role": "user", "content": content}]
            chat = {"model": "onward-tiny", "messages": messages, "max_tokens": 8, "user": f"u{number}"}
            answer = await self._post(session, "/v1/chat/completions", chat)
            if answer is not None and answer["onward"]["logged"]:
                await self._judge(session, answer["onward"]["inference_id"], chance.random() < 0.5)
            await asyncio.sleep(chance.expovariate(1 / THINKS_S))

    async def _judge(self, session: aiohttp.ClientSession, inference_id: str, good: bool) -> None:
        self.turns.append(inference_id)
        name, own_id = "accepted" if good else "rejected", str(uuid.uuid4())
        said = {"inference_id": inference_id, "metric_name": name, "value": True, "feedback_id": own_id}
        if await self._post(session, "/v1/feedback", said) is not None:
            self.outcomes[own_id] = inference_id

    async def _post(self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Any:
        began_at, began_s = time.time(), time.monotonic()
        try:
            async with session.post(self._url + path, json=body) as response:
                said = await response.json()
                self.taken.append((began_at, time.monotonic() - began_s))
                if response.status < 300:
                    return said
                self.failures.append(f"{path}: {response.status} {said}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.failures.append(f"{path}: {type(error).__name__} {error}")
        await asyncio.sleep(0.2)
        return None


def main() -> None:
    url, output = sys.argv[1:]
    crowd = Crowd(url, os.environ["ONWARD_CROWD_KEY"])
    asyncio.run(crowd.work())
    found = {name: getattr(crowd, name) for name in ("taken", "turns", "outcomes", "failures")}
    Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
