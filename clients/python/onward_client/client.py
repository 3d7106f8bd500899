"""The client for programs without an event loop."""

import atexit
from typing import TYPE_CHECKING, Any

import httpx

from onward_client.errors import Unreachable
from onward_client.queue import Refusal
from onward_client.requests import Queued, consent_request, feedback_request, withdrawal_request
from onward_client.sender import Sender
from onward_client.session import Session
from onward_client.settings import Client, answer_in, outcomes_in, session_id_of

if TYPE_CHECKING:
    import openai


class Onward(Client["openai.OpenAI"]):
    """A client of one service. Any thread may use it; close it, or use it in `with`."""

    def _begin(self) -> None:
        self._http = httpx.Client(**self._connection.http_options)
        self._sender = Sender(self._http, self._queue, self._on_refused)
        self._is_closed = False
        atexit.register(self.close)

    @property
    def problem(self) -> str | None:
        """The reason why feedback waits, if the latest try to send it failed."""
        return self._sender.sending.problem

    @property
    def queued(self) -> int:
        """The number of requests that the service has not acknowledged."""
        return len(self._queue)

    def refused(self) -> list[Refusal]:
        """Return what the service refused for good, the oldest first."""
        return self._queue.refused()

    def _make_openai(self, headers: Any) -> "openai.OpenAI":
        import openai

        return openai.OpenAI(**self._connection.openai_options(headers))

    def feedback(self, answer: Any, metric: str, value: bool | float | str | None = None, **details: Any) -> str:
        """Queue feedback on an answer, and return its id; the service hears of it soon.

        `answer` is an answer, a chunk of it, one choice of several, or an inference's id. `details` are those of
        `feedback_request`: `final_text`, `diff` or `snapshot` instead of a value; `source`, `user`, `tags`,
        `supersedes`, `tool_call_id`, `evidence`, `observed_at`. Raises ValueError for what makes no sense, QueueFull,
        and sqlite3.Error where the disk does not take it."""
        return self._put(feedback_request(answer, metric=metric, value=value, **details))

    def session_feedback(self, session: Session[Any] | str, metric: str, value: Any = None, **details: Any) -> str:
        """Queue feedback on a session, as `feedback` does on an answer."""
        named = session_id_of(session)
        return self._put(feedback_request(session_id=named, metric=metric, value=value, **details))

    def withdraw(self, feedback_id: str) -> None:
        """Queue the withdrawal of feedback. Raises QueueFull."""
        self._put(withdrawal_request(feedback_id))

    def _put(self, request: Queued) -> str:
        self._queue.put(request)
        self._sender.wake()
        return request.request_id

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Return what feedback may be about, by name. Raises RequestRefused, Unreachable."""
        return outcomes_in(self._ask("GET", "/v1/outcomes"))

    def set_consent(
        self, why: str, *, user: str | None = None, session: Session[Any] | str | None = None, **allowed: Any
    ) -> dict[str, Any]:
        """Record what a user allows, in all or in one session, from now on and of what was said before.

        `allowed` are `learn`, `store` and `purposes`; what is left out stays as it was. It is not queued: when this
        returns it holds, and the answer names the orders that carry it out (`exclusion_id`, `erasure_id`). Raises
        ValueError for what makes no sense, RequestRefused, and Unreachable: then call it again."""
        named = None if session is None else session_id_of(session)
        path, body = consent_request(why, user=user, session_id=named, **allowed)
        return answer_in(self._ask("PUT", path, json=body))

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    def flush(self, timeout_s: float = 5.0) -> int:
        """Wait until everything is sent, and return how many requests are left after `timeout_s`."""
        return self._sender.flush(timeout_s)

    def close(self) -> int:
        """Send for up to `close_timeout_s`, end the thread, and return how many requests are left in the queue.

        Those in a file are sent by the next client that opens it; those in memory are lost, which is logged."""
        if self._is_closed:
            return 0
        self._is_closed = True
        atexit.unregister(self.close)
        left = self._sender.close(self._close_timeout_s)
        self._http.close()
        self._close_queue(left, self.problem)
        return left

    def __enter__(self) -> "Onward":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
