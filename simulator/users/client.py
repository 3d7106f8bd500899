"""Requests of users and their programs to the service, over HTTP."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import aiohttp
import msgspec

JSON = {"content-type": "application/json"}
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class RequestFailed(Exception):
    """The service answered with an error, or (`status` None) not at all, or not to the end."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """A client whose requests share one connection pool."""

    def __init__(
        self,
        base_urls: Sequence[str],
        http: aiohttp.ClientSession,
        timeout: aiohttp.ClientTimeout,
    ) -> None:
        """Send requests to the replicas at `base_urls` in turn, as a load balancer does."""
        self._base_urls = cycle(base_urls)
        self.timeout = timeout
        self.http = http

    def url(self, path: str) -> str:
        return next(self._base_urls) + path

    async def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        """Post the body and return the JSON answer. Raises RequestFailed for anything but a 2xx."""
        try:
            async with self.http.post(
                self.url(path), data=encode(body), headers=JSON | (headers or {}), timeout=self.timeout
            ) as response:
                data = await response.read()
                if response.status >= 300:
                    message = f"{path}: {response.status}: {data.decode(errors='replace')}"
                    raise RequestFailed(message, response.status)
                return decode(data)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise RequestFailed(f"{path}: {error!r}") from error
