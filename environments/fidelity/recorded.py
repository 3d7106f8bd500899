"""Tool calls that production made, read over the public API: what was asked, what came back, and how long it took.

Only sessions whose every turn may be learned from and is stored are read; how many were left out is said."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import aiohttp

from environments.errors import InfrastructureFailure
from environments.harness.harness import Endpoint
from environments.harness.model import Call

_TIMEOUT: Final = aiohttp.ClientTimeout(total=60.0)
_SAID_CHARACTERS: Final = 500  # of a refusal, in whatever form
_PAGE: Final = 200


@dataclass(frozen=True)
class RecordedCall:
    """One call, in the group of those that were asked for at once.

    `output` is what the model was shown, None where no later turn brought it; `seconds` None where nobody told."""

    call: Call
    group: int
    output: str | None
    seconds: float | None


@dataclass(frozen=True)
class RecordedSession:
    """A session's calls in the order in which they were made; `image` is the digest that its turns name."""

    session_id: str
    harness: str | None
    image: str | None
    calls: tuple[RecordedCall, ...]


class Recordings:
    """The sessions of a service. `left_out` counts those that are not to be used, by reason.

    `versions` are those that answered in the others."""

    def __init__(self, endpoint: Endpoint, http: aiohttp.ClientSession) -> None:
        self._url = endpoint.base_url.rstrip("/")
        self._headers = {} if endpoint.api_key is None else {"authorization": f"Bearer {endpoint.api_key}"}
        self._http = http
        self.left_out = Counter[str]()
        self.versions = set[int | str]()

    async def sessions(self, workload: str | None, most: int) -> AsyncIterator[RecordedSession]:
        """Yield the newest sessions of production that made calls and may be used, no more than so many.

        Raises InfrastructureFailure where the service cannot be asked, or refuses."""
        found, before = 0, None
        while True:
            query = {"limit": str(_PAGE)}
            query |= {} if workload is None else {"workload": workload}
            query |= {} if before is None else {"before": before}
            page = await self._get("/sessions", query)
            for listed in page["data"]:
                session = await self.session(listed["session_id"])
                if session is not None:
                    yield session
                    found += 1
                if found >= most:
                    return
            before = page["next"]
            if before is None:
                return

    async def session(self, session_id: str) -> RecordedSession | None:
        """Return a session; None, counted, where it is not to be used."""
        turns = (await self._get(f"/sessions/{session_id}"))["turns"]
        why = _refusal(turns)
        if why is None:
            stories = [await self._get(f"/turns/{turn['inference_id']}") for turn in turns]
            calls = tuple(_calls(stories))
            if calls:
                self.versions |= {span["version"] for turn in turns for span in turn["policy_versions"]}
                return RecordedSession(
                    session_id, _first(turns, "harness_version"), _first(turns, "environment_image"), calls
                )
            why = "no calls"
        self.left_out[why] += 1
        return None

    async def _get(self, path: str, query: Mapping[str, str] = {}) -> Any:
        try:
            async with self._http.get(
                f"{self._url}{path}", params=query, headers=self._headers, timeout=_TIMEOUT
            ) as response:
                if response.status != 200:
                    said = (await response.text())[:_SAID_CHARACTERS]
                    raise InfrastructureFailure("service", f"{path}: {response.status}: {said}")
                return await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise InfrastructureFailure("service", f"{path}: {error!r}") from error


def _refusal(turns: Sequence[Mapping[str, Any]]) -> str | None:
    if any(turn["environment"] != "production" for turn in turns):
        return "simulated"
    if not all(turn["stored"] for turn in turns):
        return "not stored"
    return None if all(turn["learn"] for turn in turns) else "no consent"


def _calls(stories: Sequence[Mapping[str, Any]]) -> Iterator[RecordedCall]:
    """Yield the calls of a session's turns.

    Their results stand in a turn that continues theirs, behind the last word of the assistant: ids of calls alone may
    come again in each turn."""
    next_of = {story["parent_id"]: story for story in reversed(stories)}
    for group, story in enumerate(stories):
        results = _results(next_of.get(story["inference_id"]))
        for called in story["tool_calls"]:
            result = results.get(called["id"])
            call = Call(called["id"], called["name"], called["arguments"])
            yield RecordedCall(call, group, None if result is None else _text(result), _seconds(called, result))


def _results(story: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    messages = [] if story is None else story["messages"]
    said = (place for place in reversed(range(len(messages))) if messages[place].get("role") == "assistant")
    begin = next(said, len(messages))
    return {message["tool_call_id"]: message for message in messages[begin:] if message.get("role") == "tool"}


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def _seconds(called: Mapping[str, Any], result: Mapping[str, Any] | None) -> float | None:
    times = called if called.get("started_at") else (result or {}).get("onward")
    if not times:
        return None
    began, ended = (datetime.fromisoformat(times[name]) for name in ("started_at", "ended_at"))
    return (ended - began).total_seconds()


def _first(turns: Sequence[Mapping[str, Any]], name: str) -> str | None:
    return next((turn[name] for turn in turns if turn[name] is not None), None)
