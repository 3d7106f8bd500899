"""The requests of simulated users, by session in order of arrival, without ids that others generate."""

import asyncio
import hashlib
import json
from typing import Any

import aiohttp

from simulator.drive import Driver, RunOptions
from simulator.outcome.truth import Truth

Sent = tuple[str, dict[str, Any], dict[str, str]]  # path, body, headers
_MADE_BY_OTHERS = ("feedback_id", "session_id", "inference_id", "x-session-id")


class NotingSession:
    """A wrapper of aiohttp's session that records the requests of each simulated session, which is a task."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.sent: dict[asyncio.Task[Any] | None, list[Sent]] = {}

    def post(self, url: str, *, data: bytes, headers: dict[str, str], timeout: Any) -> Any:
        path = "/" + url.split("/", 3)[3]
        parts = path.split("/")
        path = "/".join(["*" if parts[place - 1] == "sessions" else part for place, part in enumerate(parts)])
        noted = path, _without_ids(json.loads(data)), _without_ids(headers)
        self.sent.setdefault(asyncio.current_task(), []).append(noted)
        return self._http.post(url, data=data, headers=headers, timeout=timeout)


def live(url: str, seconds: float = 0.5, rate: float = 80, **options: Any) -> tuple[Truth, list[list[Sent]]]:
    """Run the users; return what happened and what each session sent."""

    async def run() -> tuple[Truth, list[list[Sent]]]:
        async with aiohttp.ClientSession() as http:
            noting = NotingSession(http)
            driver = Driver(RunOptions((url,), seconds, rate, options.pop("seed", 0), **options), noting)  # type: ignore[arg-type]
            await driver.run()
            return driver.truth, list(noting.sent.values())

    return asyncio.run(run())


def digest(sent: list[list[Sent]]) -> str:
    return hashlib.blake2b(json.dumps(sent, sort_keys=True).encode(), digest_size=8).hexdigest()


def _without_ids(given: dict[str, Any]) -> dict[str, Any]:
    return {name: "*" if name in _MADE_BY_OTHERS else value for name, value in given.items()}
