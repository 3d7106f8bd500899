"""Asking the model, over the public HTTP API: one turn a request, tried again while the service stays away."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
import msgspec

from environments.errors import InfrastructureFailure
from environments.harness.harness import Endpoint

Message = dict[str, Any]

_OK: Final = 200
_MAY_PASS: Final = (408, 425, 429, 500, 502, 503, 504)
_FIRST_PAUSE_SECONDS: Final = 0.25
_LONGEST_PAUSE_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 900.0
"""How long a connection may say nothing before it counts as lost: an answer comes whole, and others may go first."""
_FULL: Final = (503, "unavailable")  # with `retry-after`: the service's own word that as much is under way as may be
_OUT_OF_TIME: Final = 504  # a proxy's word that it waited in vain
_SENT_BACK: Final = ("content", "reasoning_content", "tool_calls")  # of an answer, with the next request


class ContextFull(Exception):
    """The service says that the request exceeds the model's context."""


@dataclass(frozen=True)
class Call:
    """A tool call that the model asked for; `arguments` is JSON as it wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """One turn. `message` is what the next request sends back; `seconds` is how long its own request took."""

    inference_id: str
    policy_version: int | str
    message: Message
    text: str
    calls: tuple[Call, ...]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    seconds: float


class Conversation(Protocol):
    """The model as one session of one harness asks it: over HTTP, or as whoever has it in reach asks it."""

    async def answer(self, messages: Sequence[Message], headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        """Ask for the next turn; `fields` are further ones of the request, `headers` of a request by HTTP.

        Raises ContextFull; InfrastructureFailure where there is no answer."""
        ...


Converse = Callable[[], Conversation]
"""Begins a conversation with the model."""


class Model:
    """The model as one session of one harness asks it."""

    def __init__(
        self, endpoint: Endpoint, http: aiohttp.ClientSession, headers: dict[str, str], patience_seconds: float
    ) -> None:
        """Send `headers` with every request.

        A service that stays away for longer than `patience_seconds` has failed; one that is busy is not away."""
        self._endpoint = endpoint
        self._http = http
        self._headers = {"content-type": "application/json", **headers}
        self._patience_seconds = patience_seconds

    async def answer(self, messages: Sequence[Message], headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        """Ask for the next turn; `fields` are further ones of the request.

        Raises ContextFull; InfrastructureFailure where the service stays away, or refuses what is sent."""
        body = {"model": self._endpoint.model, "messages": messages, **fields}
        absence = _Absence(self._patience_seconds)
        for tries in itertools.count():
            began = time.monotonic()
            # A retry says so: both answers are then choices of one request, where the first was only lost on its way.
            told = {"x-stainless-retry-count": str(tries)} if tries else {}
            reply = await self._post("/chat/completions", body, {**(headers or {}), **told})
            if reply.status == _OK:
                return _answer(reply.body, time.monotonic() - began)
            if reply.code == "context_length_exceeded":
                raise ContextFull(reply.message)
            pause = reply.wait_seconds or _pause(tries)
            may_pass = reply.status is None or reply.status in _MAY_PASS
            if not may_pass or absence.is_too_long(reply, began, pause):
                raise InfrastructureFailure("service", reply.message)
            await asyncio.sleep(pause)
        raise AssertionError

    async def _post(self, path: str, body: Any, headers: dict[str, str]) -> "_Reply":
        url, sent = self._endpoint.base_url.rstrip("/") + path, self._headers | headers
        try:
            async with self._http.post(
                url, data=msgspec.json.encode(body), headers=sent, timeout=patience()
            ) as response:
                raw = await response.read()
                wait = response.headers.get("retry-after", "")
                wait_seconds, was_there = float(wait) if wait.isdecimal() else None, response.status != _OUT_OF_TIME
                return _Reply(response.status, _decoded(raw), wait_seconds, was_there)
        except (aiohttp.ClientError, TimeoutError) as error:
            # It was never connected, or said nothing: else it had the request, and was lost with it.
            is_gone = isinstance(error, (aiohttp.ClientConnectorError, TimeoutError))
            return _Reply(None, {"error": {"message": f"no answer: {error!r}"}}, None, was_there=not is_gone)


def patience() -> aiohttp.ClientTimeout:
    """Return how long a request for an answer may take: as long as it needs, and so long without a word."""
    return aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)


class _Absence:
    """For how long the service has been away, while one turn is asked for."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._since: float | None = None

    def is_too_long(self, reply: "_Reply", began: float, pause: float) -> bool:
        """Take note of a failed reply to a request that `began` then; True where patience ends before the pause does.

        The time of a request that was held is no absence: users go first, and an answer takes as long as it takes. Its
        failure is thus the first of another absence. Held is what took longer than any pause between two tries."""
        now = time.monotonic()
        if reply.is_full:
            self._since = None
            return False
        if self._since is None or (reply.was_there and now - began > _LONGEST_PAUSE_SECONDS):
            self._since = now
        return now + pause > self._since + self._patience_seconds


@dataclass(frozen=True)
class _Reply:
    """What came back; `status` is None where nothing whole did. `wait_seconds`: how long the service asks to wait.

    `was_there` is False where nobody took the request, or nobody said a word of it for as long as is waited for one."""

    status: int | None
    body: Any
    wait_seconds: float | None
    was_there: bool = True

    @property
    def _error(self) -> dict[str, Any]:
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return error if isinstance(error, dict) else {}

    @property
    def code(self) -> str | None:
        return self._error.get("code")

    @property
    def is_full(self) -> bool:
        """Whether the service is there and has no place at the moment."""
        return (self.status, self.code) == _FULL and self.wait_seconds is not None

    @property
    def message(self) -> str:
        said = self._error.get("message", "an error that says nothing")
        return said if self.status is None else f"{self.status}: {said}"


def _decoded(raw: bytes) -> Any:
    """Return a body's JSON; one that is none, such as a proxy's page, as an error that quotes it."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {"error": {"message": raw[:200].decode(errors="replace")}}


def _pause(tries: int) -> float:
    most: float = min(_FIRST_PAUSE_SECONDS * 2**tries, _LONGEST_PAUSE_SECONDS)
    return most * random.uniform(0.5, 1.0)


def _answer(answered: Any, seconds: float) -> Answer:
    """Read an answer. Raises InfrastructureFailure where it is none of this service's."""
    try:
        choice, info, usage = answered["choices"][0], answered["onward"], answered["usage"]
        own = choice.get("onward") or info
        message = {
            "role": "assistant",
            **{name: choice["message"].get(name) for name in _SENT_BACK if name in choice["message"]},
        }
        return Answer(
            inference_id=own["inference_id"],
            policy_version=own.get("policy_version", info.get("policy_version")),
            message=message,
            text=choice["message"].get("content") or "",
            calls=tuple(
                Call(call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in choice["message"].get("tool_calls") or ()
            ),
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            seconds=seconds,
        )
    except (KeyError, IndexError, TypeError) as error:
        raise InfrastructureFailure("service", f"an answer without {error}: it is not this service's") from None
