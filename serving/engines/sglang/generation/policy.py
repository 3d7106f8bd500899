"""The data path to one SGLang server: tokens in, tokens out, as they are sampled.

Closing the stream closes its connection, on which SGLang aborts the request at once (it cancels the handler, which
aborts what it had dispatched), wherever the request stands, and without a key.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress

import aiohttp
import msgspec

from core import telemetry
from core.errors import EngineUnavailable
from core.operations.fleet import NamedVersion
from core.ports import GenerateRequest, TokenChunk
from core.settings import SglangSettings
from serving.engines.sglang.generation.answer import EngineAnswer
from serving.engines.sglang.generation.refusals import refusal
from serving.engines.sglang.generation.spans import upon_the_anchor, version_of
from serving.engines.sglang.generation.wire import decode_event, encode_request

_CONNECT_S = 5.0
_HEADERS_S = 10.0  # they are sent before the request is queued: a server that owes them is stuck
_PATIENT = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)  # however long nothing comes
_LAST_WORD_S = 1.0  # between the last token and the end of the stream
_KEEP_ALIVE_S = 3.0  # shorter than the server's (5 s): else it closes a connection as we write to it
_HEADERS = {"Content-Type": "application/json"}
_DATA, _END = b"data:", b"\n\n"  # of a server-sent event


class EventStream:
    """Splits a stream into the payloads of its server-sent events, of one `data:` line each and of any length."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the payloads of the events that this piece completes."""
        *events, self._rest = (self._rest + piece).split(_END)
        return [event[len(_DATA) :].strip() for event in events if event.startswith(_DATA)]


class SglangConnections:
    """The connections to a fleet's servers, opened with the first generation.

    Implements serving.fleet.RemoteEngines."""

    def __init__(self, settings: SglangSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    @property
    def dtype(self) -> str:
        return self._settings.dtype

    def generation(self, url: str, request: GenerateRequest, named: NamedVersion | None = None) -> "Generation":
        if self._session is None:
            self._session = self._open()
        return Generation(self._session, url, request, named)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        key, silence_s = self._settings.admin_key, self._settings.timeouts.silence_s
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s),
            headers=_HEADERS if key is None else {**_HEADERS, "Authorization": f"Bearer {key}"},
        )


class Generation:
    """One request to one server. `stream` it once."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, request: GenerateRequest, named: NamedVersion | None = None
    ) -> None:
        self._http, self._url, self._request, self._named = http, url, request, named
        self._response: aiohttp.ClientResponse | None = None
        self.heard_s = time.monotonic()  # when the server last said something

    def give_up(self) -> None:
        """Let `stream` raise EngineUnavailable, though nothing was heard."""
        if self._response is not None:
            self._response.close()

    async def stream(self) -> AsyncGenerator[TokenChunk, None]:
        """Stream an answer as core.ports.Policy does.

        Raises EngineUnavailable at any time, InvalidRequest before the first chunk."""
        speaker = version_of if self._named is None else upon_the_anchor(self._named.version)
        answer, events, is_begun = EngineAnswer(self._url, speaker), EventStream(), False
        try:
            response = self._response = await self._post()
            try:
                async for piece in response.content.iter_any():
                    self.heard_s = time.monotonic()
                    for data in events.feed(piece):
                        chunks = answer.take(decode_event(data))
                        is_awaited = self._request.priority == "normal"
                        if answer.queue_s is not None and is_awaited and not is_begun:
                            telemetry.QUEUE_SECONDS.observe(answer.queue_s)
                        is_begun = is_begun or bool(chunks)
                        is_last = bool(chunks) and chunks[-1].finish_reason is not None
                        if is_last:
                            await _read_to_end(response)
                        for chunk in chunks:
                            yield chunk
                        if is_last:
                            return
            finally:
                response.close()  # does nothing to one that was read to its end
        except (aiohttp.ClientError, TimeoutError, ConnectionError, msgspec.DecodeError) as error:
            raise EngineUnavailable(f"{self._url}: {type(error).__name__}: {error}") from error
        raise EngineUnavailable(f"{self._url}: the answer has no end")

    async def _post(self) -> aiohttp.ClientResponse:
        # Its own name in each attempt: a server refuses one that it still holds.
        rid = f"{self._request.inference_id}-{uuid.uuid4().hex[:8]}"
        body = encode_request(self._request, rid, None if self._named is None else self._named.name)
        # One of low priority may wait for as long as there are others: only its host tells then that a server hangs.
        timeout = self._http.timeout if self._request.priority == "normal" else _PATIENT
        async with asyncio.timeout(_HEADERS_S):
            response = await self._http.post(f"{self._url}/generate", data=body, timeout=timeout)
            if response.status != 200:
                raise refusal(self._url, response.status, _message(await response.read()))
        return response


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    """Read the rest, so that the connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_LAST_WORD_S):
            await response.content.read()


def _message(body: bytes) -> str:
    """Return the message of an HTTP error: `{"error": {"message"}}`, `{"error": text}`, or any other body."""
    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return body.decode(errors="replace")
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)
