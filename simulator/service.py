"""What the service says of itself, through its public API."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import aiohttp
import msgspec

_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([0-9.eE+-]+|NaN|\+Inf)$")
_CHECKERS = 32


class ServiceView:
    def __init__(self, base_url: str, http: aiohttp.ClientSession) -> None:
        self._base_url = base_url
        self._http = http

    async def metrics(self) -> dict[str, float]:
        """Samples by name and labels, as /metrics writes them."""
        async with self._http.get(self._base_url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        samples = {}
        for line in lines:
            if found := _SAMPLE.match(line):
                name = found[1] + (f"{{{found[2]}}}" if found[2] else "")
                samples[name] = float(found[3])
        return samples

    async def get(self, path: str) -> Any:
        async with self._http.get(self._base_url + path) as response:
            if response.status == 404:
                return None
            response.raise_for_status()
            return msgspec.json.decode(await response.read())

    async def policies(self) -> list[dict[str, Any]]:
        return list((await self.get("/v1/policies?limit=1000"))["data"])

    async def count_turns(self, session_ids: Iterable[str]) -> Counter[str]:
        """How often each inference stands in its session."""
        counts: Counter[str] = Counter()

        async def one(session_id: str) -> None:
            session = await self.get(f"/v1/sessions/{session_id}")
            counts.update(turn["inference_id"] for turn in (session or {}).get("turns", ()))

        await _all(one, session_ids)
        return counts

    async def known_outcomes(self, feedback_ids: Iterable[str]) -> set[str]:
        known: set[str] = set()

        async def one(feedback_id: str) -> None:
            if await self.get(f"/v1/feedback/{feedback_id}") is not None:
                known.add(feedback_id)

        await _all(one, feedback_ids)
        return known


async def _all(work: Any, items: Iterable[str]) -> None:
    """A few at a time."""
    queue = list(items)

    async def worker() -> None:
        while queue:
            await work(queue.pop())

    await asyncio.gather(*(worker() for _ in range(_CHECKERS)))
