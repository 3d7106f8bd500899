"""Answers from an OpenAI-compatible endpoint: chat completions over HTTP."""

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec

from core.ids import PolicyRef
from core.network.chat_endpoint import SHOWN, ChatEndpoint, NoAnswer, text_of
from serving.evals.cases import CannotRun, Case

_HEADERS = {"x-onward-learn": "false"}
"""Tells an endpoint that is Onward itself to learn nothing from the request."""
_VERSION = "x-onward-policy-version"
_TOO_LONG = ("context_length_exceeded", "maximum context length")  # the code of OpenAI and of Onward, and vLLM's words


class _Version(msgspec.Struct):
    version: int | str
    digest: str


class _Versions(msgspec.Struct):
    data: list[_Version]


_decode_versions = msgspec.json.Decoder(_Versions).decode


class EvalEndpoint:
    """`url` as OpenAI's clients have it, with /v1. Use it in one event loop."""

    def __init__(self, url: str, model: str, api_key: str | None = None, timeout_s: float = 120.0) -> None:
        self._model, self._timeout_s = model, timeout_s
        self._server = ChatEndpoint(url, api_key, timeout_s=timeout_s, headers=_HEADERS)
        self.versions: set[PolicyRef] = set()
        """The versions that answered, where the endpoint is Onward, which says so."""

    async def aclose(self) -> None:
        await self._server.aclose()

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
            raise CannotRun(f"{self._server.url}: {response.status_code}: {response.text[:SHOWN]}{hint}")
        self._note_version(response)
        try:
            return text_of(response)
        except ValueError as error:
            raise CannotRun(f"{self._server.url}: {error}") from error

    def _note_version(self, response: httpx.Response) -> None:
        said = response.headers.get(_VERSION)
        try:
            self.versions |= set() if said is None else {PolicyRef.parse(said)}
        except ValueError as error:
            raise CannotRun(f"{self._server.url}: {_VERSION}: {error}") from error

    async def digest(self) -> str | None:
        """Return the digest of the weights that answered; None where several did, or the endpoint does not say.

        Onward says it to keys that may read its state; others have no such route."""
        if len(self.versions) != 1:
            return None
        (only,) = self.versions
        try:
            response = await self._server.get("policies", {"before": only.version + 1, "limit": 1})
            listed = _decode_versions(response.content).data if response.status_code == 200 else []
        except (NoAnswer, TimeoutError, msgspec.DecodeError):
            return None
        return next((each.digest for each in listed if str(each.version) == str(only)), None)

    async def _post(self, body: Mapping[str, Any]) -> httpx.Response:
        try:
            return await self._server.post(body)
        except TimeoutError:
            raise CannotRun(f"{self._server.url}: no answer within {self._timeout_s:g} s") from None
        except NoAnswer as error:
            raise CannotRun(f"{self._server.url}: {error}") from error
