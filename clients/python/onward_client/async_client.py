"""The client for programs with an event loop."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from onward_client import settings
from onward_client.async_sender import AsyncSender
from onward_client.errors import Unreachable
from onward_client.queue import Queue, Refusal
from onward_client.requests import Queued, feedback_request, withdrawal_request
from onward_client.sending import OnRefused, logger
from onward_client.session import Session

if TYPE_CHECKING:
    import openai


class AsyncOnward:
    """A client of one service, within `async with`: there it sends what is queued."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        queue: str | Path | None = None,
        queue_entries: int = 10_000,
        harness: str | None = None,
        timeout_s: float = 30.0,
        close_timeout_s: float = 5.0,
        on_refused: OnRefused | None = None,
    ) -> None:
        """Make a client as `Onward` does, with the same options and errors."""
        self._connection = settings.connection_to(url, api_key, timeout_s)
        self._harness = harness
        self._close_timeout_s = close_timeout_s
        self._on_refused = on_refused
        self._queue = Queue(settings.queue_file(queue), queue_entries)
        self._http = httpx.AsyncClient(
            base_url=self._connection.url,
            headers=self._connection.headers,
            timeout=timeout_s,
            mounts=settings.DIRECT,
        )
        self._sender: AsyncSender | None = None

    async def __aenter__(self) -> "AsyncOnward":
        self._sender = AsyncSender(self._http, self._queue, self._on_refused)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _sending(self) -> AsyncSender:
        if self._sender is None:
            raise RuntimeError("use AsyncOnward in `async with`: only there does it send")
        return self._sender

    @property
    def problem(self) -> str | None:
        """The reason why feedback waits, if the latest try to send it failed."""
        return self._sending().sending.problem

    async def queued(self) -> int:
        """Return the number of requests that the service has not acknowledged."""
        return await asyncio.to_thread(len, self._queue)

    async def refused(self) -> list[Refusal]:
        """Return what the service refused for good, the oldest first."""
        return await asyncio.to_thread(self._queue.refused)

    def session(self, **options: Any) -> "Session[openai.AsyncOpenAI]":
        """Return a session; `options` are the fields of `Session`."""
        return Session(self._make_openai, **{"harness": self._harness, **options})

    def _make_openai(self, headers: Any) -> "openai.AsyncOpenAI":
        import openai

        class Http(openai.DefaultAsyncHttpxClient):
            def __del__(self) -> None:  # as openai's own has it: nobody closes the clients of sessions
                with suppress(RuntimeError):  # there is no loop any more
                    loop = asyncio.get_running_loop()
                    if not self.is_closed:
                        loop.create_task(self.aclose())  # noqa: RUF006 - the loop holds it while it closes

        http = Http(mounts=settings.DIRECT)
        return openai.AsyncOpenAI(**self._connection.openai_options(headers), http_client=http)

    async def feedback(self, answer: Any, metric: str, value: bool | float | str | None = None, **details: Any) -> str:
        """Queue feedback on an answer, and return its id: see `Onward.feedback`."""
        return await self._put(feedback_request(answer, metric=metric, value=value, **details))

    async def session_feedback(
        self, session: Session[Any] | str, metric: str, value: Any = None, **details: Any
    ) -> str:
        """Queue feedback on a session, as `feedback` does on an answer."""
        session_id = session if isinstance(session, str) else session.session_id
        return await self._put(feedback_request(session_id=session_id, metric=metric, value=value, **details))

    async def withdraw(self, feedback_id: str) -> None:
        """Queue the withdrawal of feedback. Raises QueueFull."""
        await self._put(withdrawal_request(feedback_id))

    async def _put(self, request: Queued) -> str:
        sender = self._sending()
        await asyncio.to_thread(self._queue.put, request)
        sender.wake()
        return request.request_id

    async def outcomes(self) -> dict[str, dict[str, Any]]:
        """Return what feedback may be about, by name. Raises RequestRefused, Unreachable."""
        try:
            answer = await self._http.get("/v1/outcomes")
        except httpx.TransportError as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        content = settings.read(answer.status_code, answer.headers, answer.content)
        return {outcome["name"]: outcome for outcome in json.loads(content)["data"]}

    async def flush(self, timeout_s: float = 5.0) -> int:
        """Wait until everything is sent, and return how many requests are left after `timeout_s`."""
        return await self._sending().flush(timeout_s)

    async def close(self) -> int:
        """Send for up to `close_timeout_s`, end the task, and return how many requests are left: see `Onward.close`."""
        sender, self._sender = self._sender, None
        if sender is None:
            return 0
        left = await sender.close(self._close_timeout_s)
        if left and not self._queue.is_durable:
            logger.error("%d requests with feedback are lost: the queue was in memory", left)
        await self._http.aclose()
        self._queue.close()
        return left
