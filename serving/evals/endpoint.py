"""Answers from an OpenAI-compatible endpoint: chat completions over HTTP."""

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from core.ids import PolicyRef
from serving.evals.cases import CannotRun, Case

_HEADERS = {"X-Turn-Type": "side", "x-onward-learn": "false"}
"""Headers for an endpoint that is Onward itself: the request is no user's turn, and nothing is learned from it."""
_VERSION = "x-onward-policy-version"
_SHOWN = 200  # characters of an answer, in a message
_TOO_LONG = ("context_length_exceeded", "maximum context length")  # the code of OpenAI and of Onward, and vLLM's words


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Said


class _ChatCompletion(msgspec.Struct):
    choices: list[_Choice]


class _Version(msgspec.Struct):
    version: int | str
    digest: str


class _Versions(msgspec.Struct):
    data: list[_Version]


_decode = msgspec.json.Decoder(_ChatCompletion).decode
_decode_versions = msgspec.json.Decoder(_Versions).decode


class EvalEndpoint:
    """`url` as OpenAI's clients have it, with /v1. Use it in one event loop."""

    def __init__(self, url: str, model: str, api_key: str | None = None, timeout_s: float = 120.0) -> None:
        headers = _HEADERS if api_key is None else {**_HEADERS, "Authorization": f"Bearer {api_key}"}
        self._base, self._model, self._timeout_s = url.rstrip("/"), model, timeout_s
        self._url = f"{self._base}/chat/completions"
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout_s)
        self.versions: set[PolicyRef] = set()
        """The versions that answered, where the endpoint is Onward, which says so."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __call__(self, case: Case) -> str:
        """Ask once; an answer without text is an empty one. Raises CannotRun.

        A case that says nothing of `max_tokens` is asked again without a number where the context has no room for the
        usual one: the endpoint then gives what room there is."""
        body = {
            "model": self._model,
            "messages": case.request(),
            "temperature": case.temperature,
            "max_tokens": case.most_tokens,
        } | ({} if case.seed is None else {"seed": case.seed})
        response = await self._post(body)
        is_too_long = response.status_code == 400 and any(sign in response.text for sign in _TOO_LONG)
        if is_too_long and case.max_tokens is None:
            response = await self._post({name: value for name, value in body.items() if name != "max_tokens"})
        if response.status_code != 200:
            said = is_too_long and case.max_tokens is not None
            hint = f" (the case's max_tokens is {case.max_tokens}: say fewer)" if said else ""
            raise CannotRun(f"{self._url}: {response.status_code}: {response.text[:_SHOWN]}{hint}")
        self._note_version(response)
        try:
            return _decode(response.content).choices[0].message.content or ""
        except (msgspec.DecodeError, IndexError) as error:
            raise CannotRun(f"{self._url}: no chat completion: {error}") from error

    def _note_version(self, response: httpx.Response) -> None:
        said = response.headers.get(_VERSION)
        try:
            self.versions |= set() if said is None else {PolicyRef.parse(said)}
        except ValueError as error:
            raise CannotRun(f"{self._url}: {_VERSION}: {error}") from error

    async def digest(self) -> str | None:
        """Return the digest of the weights that answered; None where several did, or the endpoint does not say.

        Onward says it to keys that may read its state; others have no such route."""
        if len(self.versions) != 1:
            return None
        (only,) = self.versions
        try:
            response = await self._client.get(f"{self._base}/policies", params={"before": only.version + 1, "limit": 1})
            listed = _decode_versions(response.content).data if response.status_code == 200 else []
        except (httpx.HTTPError, msgspec.DecodeError):
            return None
        return next((each.digest for each in listed if str(each.version) == str(only)), None)

    async def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        try:
            return await self._client.post(self._url, json=body)
        except httpx.TimeoutException:
            raise CannotRun(f"{self._url}: no answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise CannotRun(f"{self._url}: {type(error).__name__}: {error}") from error
