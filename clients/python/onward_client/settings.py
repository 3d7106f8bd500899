"""What a client is told when it is made, the same for both kinds."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from onward_client.delivery import Acknowledged, Later, Rejected, verdict_on
from onward_client.errors import RequestRefused, Unreachable

DIRECT: Final[Mapping[str, None]] = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""httpx's `mounts`: no proxy that the environment names stands before this machine itself."""


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

    def openai_options(self, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the options of an `openai` client; it insists on a key, where the service may want none."""
        return {"base_url": self.openai_url, "api_key": self.api_key or "none", "default_headers": dict(headers)}


def connection_to(url: str, api_key: str | None, timeout_s: float) -> Connection:
    """Return the connection; a URL may end in `/v1`, as `openai` clients have it. Raises ValueError for another."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url: {url!r} must begin with http:// or https://")
    return Connection(url.rstrip("/").removesuffix("/v1"), api_key, timeout_s)


def queue_file(queue: str | Path | None) -> Path | None:
    return None if queue is None else Path(queue).expanduser()


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


def _version() -> str:
    try:
        return version("onward-client")
    except PackageNotFoundError:  # it is read from a checkout
        return "unknown"
