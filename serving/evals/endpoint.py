"""Answers from an OpenAI-compatible endpoint: chat completions over HTTP."""

import httpx
import msgspec

from serving.evals.cases import CannotRun, Case

HEADERS = {"X-Turn-Type": "side", "x-onward-learn": "false"}
"""Headers for an endpoint that is Onward itself: the request is no user's turn, and nothing is learned from it."""
_SHOWN = 200  # characters of an answer, in a message


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Said


class _ChatCompletion(msgspec.Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_ChatCompletion).decode


class Endpoint:
    """`url` as OpenAI's clients have it, with /v1. Use it in one event loop."""

    def __init__(self, url: str, model: str, api_key: str | None = None, timeout_s: float = 120.0) -> None:
        headers = HEADERS if api_key is None else {**HEADERS, "Authorization": f"Bearer {api_key}"}
        self._url, self._model, self._timeout_s = f"{url.rstrip('/')}/chat/completions", model, timeout_s
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout_s)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __call__(self, case: Case) -> str:
        """Ask once; an answer without text is an empty one. Raises CannotRun."""
        body = {
            "model": self._model,
            "messages": case.request(),
            "temperature": case.temperature,
            "max_tokens": case.max_tokens,
        } | ({} if case.seed is None else {"seed": case.seed})
        try:
            response = await self._client.post(self._url, json=body)
        except httpx.TimeoutException:
            raise CannotRun(f"{self._url}: no answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise CannotRun(f"{self._url}: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise CannotRun(f"{self._url}: {response.status_code}: {response.text[:_SHOWN]}")
        try:
            return _decode(response.content).choices[0].message.content or ""
        except (msgspec.DecodeError, IndexError) as error:
            raise CannotRun(f"{self._url}: no chat completion: {error}") from error
