"""Chat completions of another server, over HTTP: the request, and how an answer is read."""

from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec

from core.errors import OnwardError

SHOWN: Final = 200
"""How many characters of an answer a message about it quotes."""
_SIDE: Final = {"X-Turn-Type": "side"}


class NoAnswer(OnwardError):
    """The server cannot be reached, or ended the connection."""


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Said


class _ChatCompletion(msgspec.Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_ChatCompletion).decode


class ChatEndpoint:
    """A server with OpenAI's chat completions. Use it in one event loop.

    If the server is Onward itself, a header tells it that these requests are not turns of its users."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`base_url` ends with /v1, as for OpenAI's clients; `timeout_s` bounds each wait for the server."""
        key = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._base = base_url.rstrip("/")
        self.url = f"{self._base}/chat/completions"
        self._client = httpx.AsyncClient(headers={**_SIDE, **(headers or {}), **key}, timeout=timeout_s)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def post(self, body: Mapping[str, Any]) -> httpx.Response:
        """Ask for a chat completion once. Raises NoAnswer and TimeoutError."""
        return await self._send(self._client.build_request("POST", self.url, json=body))

    async def get(self, path: str, params: Mapping[str, int]) -> httpx.Response:
        """Get another path below `base_url`. Raises NoAnswer and TimeoutError."""
        return await self._send(self._client.build_request("GET", f"{self._base}/{path}", params=params))

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._client.send(request)
        except httpx.TimeoutException:
            raise TimeoutError from None
        except httpx.HTTPError as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from error


def text_of(response: httpx.Response) -> str:
    """Return the text of the first choice; an answer without text is an empty one. Raises ValueError."""
    try:
        return _decode(response.content).choices[0].message.content or ""
    except (msgspec.DecodeError, IndexError) as error:
        raise ValueError(f"not a chat completion: {error}") from error
