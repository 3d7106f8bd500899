"""A view of the service through its public API."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import aiohttp
import msgspec

_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([0-9.eE+-]+|NaN|\+Inf)$")
_CHECKERS = 16
_TIMEOUT = aiohttp.ClientTimeout(total=30)

UNREACHABLE = (aiohttp.ClientError, TimeoutError)  # what methods raise when the service does not answer


class ServiceView:
    def __init__(self, base_url: str, http: aiohttp.ClientSession) -> None:
        self._base_url = base_url
        self._http = http

    async def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics under their names and labels, as they are written there."""
        async with self._http.get(self._base_url + "/metrics", timeout=_TIMEOUT) as response:
            response.raise_for_status()
            lines = (await response.text()).splitlines()
        samples = {}
        for line in lines:
            if found := _SAMPLE.match(line):
                name = found[1] + (f"{{{found[2]}}}" if found[2] else "")
                samples[name] = float(found[3])
        return samples

    async def get(self, path: str) -> Any:
        """Return the JSON at the path, or None where the service answers 404."""
        async with self._http.get(self._base_url + path, timeout=_TIMEOUT) as response:
            if response.status == 404:
                return None
            response.raise_for_status()
            return msgspec.json.decode(await response.read())

    async def policies(self) -> list[dict[str, Any]]:
        return list((await self.get("/v1/policies?limit=1000"))["data"])

    async def alarms(self) -> list[dict[str, Any]]:
        """Return all alarms, the newest first."""
        return list((await self._known("/v1/alarms?state=all&limit=1000"))["alarms"])

    async def releases(self) -> list[dict[str, Any]]:
        """Return all steps of all versions, the oldest first."""
        steps: list[dict[str, Any]] = []
        while True:
            after = steps[-1]["sequence"] if steps else 0
            page = (await self._known(f"/v1/releases?after={after}&limit=1000"))["data"]
            steps += page
            if len(page) < 1000:
                return steps

    async def _known(self, path: str) -> Any:
        """Return the JSON at the path. Raises aiohttp.ClientError for any error status, 404 included."""
        async with self._http.get(self._base_url + path, timeout=_TIMEOUT) as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read())

    async def records(self, session_ids: Iterable[str]) -> dict[str, Counter[str]]:
        """Count, for each session, how often each of its turns and outcomes stands in it.

        Sessions that cannot be read are left out."""
        found: dict[str, Counter[str]] = {}
        waiting = list(session_ids)

        async def check() -> None:
            while waiting:
                session_id = waiting.pop()
                with contextlib.suppress(*UNREACHABLE):
                    found[session_id] = _records(await self.get(f"/v1/sessions/{session_id}"))

        await asyncio.gather(*(check() for _ in range(_CHECKERS)))
        return found


def _records(session: dict[str, Any] | None) -> Counter[str]:
    if session is None:
        return Counter()
    turns = session["turns"]
    outcomes = session["outcomes"] + [outcome for turn in turns for outcome in turn["outcomes"]]
    return Counter([*(turn["inference_id"] for turn in turns), *(outcome["outcome_id"] for outcome in outcomes)])
