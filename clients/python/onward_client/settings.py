"""What a client is told when it is made, and what it makes of it: the same for both kinds."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Generic

import httpx

from onward_client.delivery import Acknowledged, Later, Rejected, verdict_on
from onward_client.errors import RequestRefused, Unreachable
from onward_client.queue import Queue
from onward_client.sending import OnRefused, logger
from onward_client.session import C, Session


@dataclass(frozen=True)
class Connection:
    """Where the service is, and who asks."""

    url: str
    api_key: str | None
    timeout_s: float

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def headers(self) -> dict[str, str]:
        authorization = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        return {"user-agent": f"onward-client/python {_version()}", **authorization}

    @property
    def http_options(self) -> dict[str, Any]:
        """Return the options of a client of HTTP."""
        return {"base_url": self.url, "headers": self.headers, "timeout": self.timeout_s}

    def openai_options(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the options of an `openai` client; it insists on a key, where the service may want none."""
        return {"base_url": self.openai_url, "api_key": self.api_key or "none", "default_headers": dict(headers)}


def connection_to(url: str, api_key: str | None, timeout_s: float) -> Connection:
    """Return the connection; a URL may end in `/v1`, as `openai` clients have it. Raises ValueError for another."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url: {url!r} must begin with http:// or https://")
    return Connection(url.rstrip("/").removesuffix("/v1"), api_key, timeout_s)


class Client(ABC, Generic[C]):
    """A client of either kind, whose sessions make `openai` clients of type `C`."""

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
        called with what the service refuses, by `Onward` on another thread. Raises ValueError for a URL that is none,
        and sqlite3.Error for a file that is no queue."""
        self._connection = connection_to(url, api_key, timeout_s)
        self._harness = harness
        self._close_timeout_s = close_timeout_s
        self._on_refused = on_refused
        self._queue = Queue(None if queue is None else Path(queue).expanduser(), queue_entries)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Make the client of HTTP."""

    @abstractmethod
    def _make_openai(self, headers: Mapping[str, str]) -> C: ...

    def session(self, **options: Any) -> Session[C]:
        """Return a session; `options` are the fields of `Session`."""
        return Session(self._make_openai, **{"harness": self._harness, **options})

    def _close_queue(self, left: int, problem: str | None) -> None:
        if left and not self._queue.is_durable:
            logger.error("%d requests with feedback are lost: the queue was in memory (%s)", left, problem)
        self._queue.close()


def read(status: int, headers: Mapping[str, str], content: bytes) -> bytes:
    """Return an answer's content. Raises RequestRefused and Unreachable for one that is no success."""
    match verdict_on(status, headers, content):
        case Rejected(status, why, param, code):
            raise RequestRefused(status, why, param, code)
        case Later(why):
            if status in (401, 403):
                raise RequestRefused(status, why, None, None)
            raise Unreachable(why)
        case Acknowledged():
            return content


def answer_in(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON of a response. Raises as `read` does."""
    answer: dict[str, Any] = json.loads(read(response.status_code, response.headers, response.content))
    return answer


def outcomes_in(response: httpx.Response) -> dict[str, dict[str, Any]]:
    """Return what feedback may be about, by name, of the service's answer. Raises as `read` does."""
    return {outcome["name"]: outcome for outcome in answer_in(response)["data"]}


def session_id_of(session: Session[Any] | str) -> str:
    return session if isinstance(session, str) else session.session_id


def _version() -> str:
    try:
        return version("onward-client")
    except PackageNotFoundError:  # it is read from a checkout
        return "unknown"
