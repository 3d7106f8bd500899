"""The client for programs with an event loop."""

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

from onward_client.async_sender import AsyncSender
from onward_client.errors import Unreachable
from onward_client.queue import Refusal
from onward_client.requests import Queued, consent_request, feedback_request, withdrawal_request
from onward_client.session import Session
from onward_client.settings import Client, answer_in, outcomes_in, session_id_of

if TYPE_CHECKING:
    import openai


class AsyncOnward(Client["openai.AsyncOpenAI"]):
    """A client of one service, within `async with`: there it sends what is queued."""

    def _begin(self) -> None:
        self._http = httpx.AsyncClient(**self._connection.http_options)
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

    def _make_openai(self, headers: Any) -> "openai.AsyncOpenAI":
        import openai

        return openai.AsyncOpenAI(**self._connection.openai_options(headers))

    async def feedback(self, answer: Any, metric: str, value: bool | float | str | None = None, **details: Any) -> str:
        """Queue feedback on an answer, and return its id: see `Onward.feedback`."""
        return await self._put(feedback_request(answer, metric=metric, value=value, **details))

    async def session_feedback(
        self, session: Session[Any] | str, metric: str, value: Any = None, **details: Any
    ) -> str:
        """Queue feedback on a session, as `feedback` does on an answer."""
        named = session_id_of(session)
        return await self._put(feedback_request(session_id=named, metric=metric, value=value, **details))

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
        return outcomes_in(await self._ask("GET", "/v1/outcomes"))

    async def set_consent(
        self, why: str, *, user: str | None = None, session: Session[Any] | str | None = None, **allowed: Any
    ) -> dict[str, Any]:
        """Record what a user allows, in all or in one session: see `Onward.set_consent`."""
        named = None if session is None else session_id_of(session)
        path, body = consent_request(why, user=user, session_id=named, **allowed)
        return answer_in(await self._ask("PUT", path, json=body))

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    async def flush(self, timeout_s: float = 5.0) -> int:
        """Wait until everything is sent, and return how many requests are left after `timeout_s`."""
        return await self._sending().flush(timeout_s)

    async def close(self) -> int:
        """Send for up to `close_timeout_s`, end the task, and return how many requests are left: see `Onward.close`."""
        sender, self._sender = self._sender, None
        if sender is None:
            return 0
        left = await sender.close(self._close_timeout_s)
        await self._http.aclose()
        self._close_queue(left, sender.sending.problem)
        return left
