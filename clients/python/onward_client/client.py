"""The client for programs without an event loop."""

import atexit
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from onward_client import settings
from onward_client.errors import Unreachable
from onward_client.queue import Queue, Refusal
from onward_client.requests import Queued, feedback_request, withdrawal_request
from onward_client.sender import Sender
from onward_client.sending import OnRefused, logger
from onward_client.session import Session

if TYPE_CHECKING:
    import openai


class Onward:
    """A client of one service. Any thread may use it; close it, or use it in `with`."""

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
        """Make a client of the service at `url`; what an earlier process left in the queue is sent from now on.

        `queue` is the file of what is to be sent, else it is kept in memory and lost with the process; `on_refused` is
        called, on another thread, with what the service refuses. Raises ValueError for a URL that is none, and
        sqlite3.Error for a file that is no queue."""
        self._connection = settings.connection_to(url, api_key, timeout_s)
        self._harness = harness
        self._close_timeout_s = close_timeout_s
        self._queue = Queue(settings.queue_file(queue), queue_entries)
        self._http = httpx.Client(
            base_url=self._connection.url,
            headers=self._connection.headers,
            timeout=timeout_s,
            mounts=settings.DIRECT,
        )
        self._sender = Sender(self._http, self._queue, on_refused)
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

    def session(self, **options: Any) -> "Session[openai.OpenAI]":
        """Return a session; `options` are the fields of `Session`."""
        return Session(self._make_openai, **{"harness": self._harness, **options})

    def _make_openai(self, headers: Any) -> "openai.OpenAI":
        import openai

        class Http(openai.DefaultHttpxClient):
            def __del__(self) -> None:  # as openai's own has it: nobody closes the clients of sessions
                if not self.is_closed:
                    self.close()

        http = Http(mounts=settings.DIRECT)
        return openai.OpenAI(**self._connection.openai_options(headers), http_client=http)

    def feedback(self, answer: Any, metric: str, value: bool | float | str | None = None, **details: Any) -> str:
        """Queue feedback on an answer, and return its id; the service hears of it soon.

        `answer` is an answer, a chunk of it, one choice of several, or an inference's id. `details` are those of
        `feedback_request`: `final_text`, `diff` or `snapshot` instead of a value; `source`, `user`, `tags`,
        `supersedes`, `tool_call_id`, `evidence`, `observed_at`. Raises ValueError for what makes no sense, QueueFull,
        and sqlite3.Error where the disk does not take it."""
        return self._put(feedback_request(answer, metric=metric, value=value, **details))

    def session_feedback(self, session: Session[Any] | str, metric: str, value: Any = None, **details: Any) -> str:
        """Queue feedback on a session, as `feedback` does on an answer."""
        session_id = session if isinstance(session, str) else session.session_id
        return self._put(feedback_request(session_id=session_id, metric=metric, value=value, **details))

    def withdraw(self, feedback_id: str) -> None:
        """Queue the withdrawal of feedback. Raises QueueFull."""
        self._put(withdrawal_request(feedback_id))

    def _put(self, request: Queued) -> str:
        self._queue.put(request)
        self._sender.wake()
        return request.request_id

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Return what feedback may be about, by name. Raises RequestRefused, Unreachable."""
        try:
            answer = self._http.get("/v1/outcomes")
        except httpx.TransportError as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        content = settings.read(answer.status_code, answer.headers, answer.content)
        return {outcome["name"]: outcome for outcome in json.loads(content)["data"]}

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
        if left and not self._queue.is_durable:
            logger.error("%d requests with feedback are lost: the queue was in memory (%s)", left, self.problem)
        self._http.close()
        self._queue.close()
        return left

    def __enter__(self) -> "Onward":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
