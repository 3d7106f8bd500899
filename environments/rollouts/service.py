"""The service as rollouts know it: it takes reports, and says whether it is ready. Over HTTP, like every client."""

import asyncio
from typing import Final

import aiohttp
import msgspec

from environments.errors import InfrastructureFailure
from environments.harness.harness import Endpoint
from environments.rollouts.reports import Report

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0)
_ASK_EVERY_S: Final = 0.5
_FOR_GOOD: Final = (400, 409, 413, 422)
"""Says the service of a report that it will never take. All else may be mended: a key, a proxy, an address."""


class Service:
    """A client of one service, whose requests share one pool of connections."""

    def __init__(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        self._url = endpoint.base_url.rstrip("/")
        self._headers = {} if endpoint.api_key is None else {"authorization": f"Bearer {endpoint.api_key}"}
        self._http = http

    async def tell(self, report: Report) -> str:
        """Send a report, once, and return the answer: `recorded`, `unknown_session`, or `refused: ...` for good.

        Telling it again changes nothing. Raises InfrastructureFailure where the service cannot take it now."""
        body = {
            "feedback_id": report.feedback_id,
            "session_id": report.session_id,
            "metric_name": report.metric_name,
            "value": report.value,
            "source": "environment",
            "tags": report.tags,
        }
        try:
            async with self._http.post(
                f"{self._url}/feedback", json=body, headers=self._headers, timeout=_TIMEOUT
            ) as response:
                return _answer(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InfrastructureFailure("service", f"feedback: {error!r}") from error

    async def ready(self) -> None:
        """Wait until the service says that it is ready."""
        while True:
            if await self._is_ready():
                return
            await asyncio.sleep(_ASK_EVERY_S)

    async def _is_ready(self) -> bool:
        try:
            async with self._http.get(
                f"{self._url.removesuffix('/v1')}/readyz", headers=self._headers, timeout=_TIMEOUT
            ) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


def _answer(status: int, body: bytes) -> str:
    """Return what the service's answer means for the report. Raises InfrastructureFailure for one to be told again."""
    if status < 300:
        return "recorded"
    text = body.decode(errors="replace")[:500]
    if status == 404 and _code_of(body) == "unknown_session":
        return "unknown_session"
    if status in _FOR_GOOD:
        return f"refused: {status}: {text}"
    raise InfrastructureFailure("service", f"feedback: {status}: {text}")


def _code_of(body: bytes) -> str | None:
    try:
        return str(msgspec.json.decode(body)["error"]["code"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
