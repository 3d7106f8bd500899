"""The one way from a harness of others to the model: it passes requests on, in one session, and notes the turns.

A harness of others names no session and tells nobody which turns it asked for; and the key for the service has no place
in a sandbox. So its requests go through here: they get the session, what is told of the asker, and the key, and what
the answers say of their turns is kept. Only turns can be asked for: the key may also give feedback, and an agent that
reached that would give itself its reward."""

import asyncio
import contextlib
import functools
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from environments.errors import InfrastructureFailure
from environments.harness.harness import Endpoint
from environments.harness.model import patience

_MOST_BYTES: Final = 16 << 20  # of a request
_AT_ONCE: Final = 8  # requests that are held; others wait. What an agent asks for costs this machine's memory
_MOST_CONNECTIONS: Final = 64
_HOP: Final = frozenset(("host", "connection", "transfer-encoding", "content-length", "authorization", "x-api-key"))
_LEFT_OUT: Final = frozenset(("connection", "transfer-encoding", "content-length", "content-encoding"))
_PASSED_ON: Final = (
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
)
_TURN: Final = "x-onward-inference-id"
_FAILED: Final = 400  # and every status above
_OF_THE_ASKER: Final = (400, 404, 405, 409, 413, 415, 422)  # where the service itself says so, and no proxy before it
_IS_WELL_WITHIN_SECONDS: Final = 10.0
_ENDS_WITHIN_SECONDS: Final = 0.5  # whoever asked is gone then, and nobody waits for the answer
_SERVICE_FAILED: Final = 500  # and every status above
_OURS: Final = ("x-onward-", "x-session-", "x-turn-")  # headers that say what a turn is: not the agent's to say


@dataclass(frozen=True)
class Asked:
    """One turn that was asked for."""

    inference_id: str
    policy_version: int | str
    prompt_tokens: int
    output_tokens: int


@dataclass
class Seen:
    """What has passed: the turns, in the order of their ends, and how many requests in a row now had no answer.

    A request that is at fault itself was answered: else a model could choose a failure instead of a bad mark. `waiting`
    counts requests without a whole answer: it is still to come, or whoever asked hung up."""

    turns: list[Asked] = field(default_factory=list)
    unanswered: int = 0
    waiting: int = 0

    def require_answers(self, harness: str, said: str) -> None:
        """Raise InfrastructureFailure where the last requests of a harness had no answer."""
        if self.unanswered:
            raise InfrastructureFailure(
                "service", f"{harness} had no answer to its last requests ({self.unanswered}): {said}"
            )


class _Door(asyncio.Protocol):
    """Lets a connection in, or closes one too many: each takes a descriptor of this process, as all episodes do."""

    def __init__(self, server: web.Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._server.connections) >= _MOST_CONNECTIONS:
            transport.close()
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)


class _BrokenOff(Exception):
    """The service's answer did not come to its end."""


class Gateway:
    """The gateway of one episode."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str], http: aiohttp.ClientSession) -> None:
        self._endpoint, self._http, self._headers = endpoint, http, dict(headers)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self.seen = Seen()

    @contextlib.asynccontextmanager
    async def listening(self, folder: Path) -> AsyncIterator[str]:
        """Listen in a folder, and yield the socket's name, which nobody can guess."""
        name = secrets.token_hex(16)
        async with self._serving("") as connected:
            listener = await asyncio.get_running_loop().create_unix_server(connected, folder / name)
            try:
                (folder / name).chmod(0o666)  # the sandbox's user is another one
                yield name
            finally:
                listener.close()
                (folder / name).unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def on_loopback(self) -> AsyncIterator[str]:
        """Listen on this machine alone, and yield the URL, with /v1, in which is a word that nobody can guess."""
        word = secrets.token_hex(16)
        async with self._serving(f"/{word}") as connected:
            listener = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
            try:
                yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/{word}/v1"
            finally:
                listener.close()

    @contextlib.asynccontextmanager
    async def _serving(self, before: str) -> AsyncIterator[Callable[[], asyncio.Protocol]]:
        """Yield what makes the protocol of each connection."""
        app = web.Application(client_max_size=_MOST_BYTES)
        for method, path in _PASSED_ON:
            app.router.add_route(method, before + path, functools.partial(self._pass_on, path))
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_ENDS_WITHIN_SECONDS)
        await runner.setup()
        server = runner.server
        assert server is not None, "it was set up"

        try:
            yield functools.partial(_Door, server)
        finally:
            await runner.cleanup()

    async def require_service(self, harness: str) -> None:
        """Raise InfrastructureFailure where a harness whose time is over waits for a service that has fallen silent.

        A service that says it is well may take long over an answer: that time is the model's."""
        if not self.seen.waiting:
            return
        timeout = aiohttp.ClientTimeout(total=_IS_WELL_WITHIN_SECONDS)
        try:
            async with self._http.get(self._url("/readyz"), headers=self._headers, timeout=timeout) as answer:
                is_well = answer.status < _SERVICE_FAILED
        except (aiohttp.ClientError, TimeoutError):
            is_well = False
        if not is_well:
            raise InfrastructureFailure("service", f"{harness} waited for an answer until its time was over")

    def _url(self, path: str) -> str:
        return self._endpoint.base_url.rstrip("/").removesuffix("/v1") + path

    async def _pass_on(self, path: str, request: web.Request) -> web.StreamResponse:
        async with self._places:
            self.seen.waiting += 1
            answer = await self._ask(path, request)  # cancelled where whoever asked hangs up: then it still counts
            self.seen.waiting -= 1
            return answer

    async def _ask(self, path: str, request: web.Request) -> web.StreamResponse:
        kept = {name.lower(): value for name, value in request.headers.items() if name.lower() not in _HOP}
        kept = {name: value for name, value in kept.items() if not name.startswith(_OURS)}
        asked = await request.read()
        try:
            async with self._http.request(
                request.method, self._url(path), data=asked, headers=kept | self._headers, timeout=patience()
            ) as answer:
                return await self._hand_back(request, answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.seen.unanswered += 1
            return web.json_response({"error": {"message": f"no answer: {error!r}"}}, status=503)

    async def _hand_back(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass an answer on as it comes, and note what became of it."""
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _LEFT_OUT}
        response = web.StreamResponse(status=answer.status, headers=kept)
        said = bytearray()
        try:
            await response.prepare(request)
            async for chunk in _chunks(answer):
                said += chunk
                await response.write(chunk)
            self._count(answer, bytes(said))
        except _BrokenOff:
            self.seen.unanswered += 1
            if request.transport is not None:
                request.transport.abort()  # the program is not to take it for whole
        except aiohttp.ClientConnectionError:
            pass  # whoever asked is gone
        finally:
            if _TURN in answer.headers:
                self.seen.turns.append(_turn(answer.headers, bytes(said)))
        return response

    def _count(self, answer: aiohttp.ClientResponse, said: bytes) -> None:
        """Count an answer that came to its end as one, or as none."""
        error = _error(said)
        if answer.status < _FAILED and error is None:
            if _TURN in answer.headers:
                self.seen.unanswered = 0
        elif not _is_of_the_asker(answer.status, error):
            self.seen.unanswered += 1


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield an answer as it comes. Raises _BrokenOff, and so tells its end from that of whoever is handed it."""
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _BrokenOff from error


def _is_of_the_asker(status: int, error: Any) -> bool:
    """Tell whether it is the request that is at fault, by the service's own words."""
    if not isinstance(error, dict):
        return False
    return status in _OF_THE_ASKER or error.get("code") == "context_length_exceeded"


def _turn(headers: Mapping[str, str], said: bytes) -> Asked:
    version = headers.get("x-onward-policy-version", "0")
    usage = _usage(said)
    return Asked(
        inference_id=headers[_TURN],
        policy_version=int(version) if version.isdigit() else version,
        prompt_tokens=usage.get("prompt_tokens", usage.get("input_tokens", 0)),
        output_tokens=usage.get("completion_tokens", usage.get("output_tokens", 0)),
    )


def _usage(said: bytes) -> dict[str, int]:
    """Return the tokens that an answer says it took: of a stream, what its last event with any says; {}: nothing."""
    return next((usage for each in _objects(said) if (usage := _usage_in(each))), {})


def _usage_in(said: dict[str, Any]) -> dict[str, int]:
    return said.get("usage") or (said.get("response") or {}).get("usage") or {}


def _error(said: bytes) -> Any:
    """Return the error that an answer is, or that a stream ends with; None where it is none."""
    return next(_objects(said), {}).get("error")


def _objects(said: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of an answer: of a stream its events, the last one first."""
    events = [said]
    if said.startswith((b"data:", b"event:")):
        events = [line.removeprefix(b"data:") for line in reversed(said.splitlines()) if line.startswith(b"data:")]
    for event in events:
        with contextlib.suppress(ValueError):
            if isinstance(whole := json.loads(event), dict):
                yield whole
