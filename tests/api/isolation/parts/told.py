"""What an answer tells: whose secrets it has, and its form without what any two requests differ in."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlencode

from api_harness import WAIT_S, Service, wait_for
from asked import Ask
from planted_organisations import Names, key
from sqlalchemy import select

from core.events import Topic
from core.ids import BASE
from core.ports import TopicPartition
from core.store.database import tables
from core.store.offsets import WRITER

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")
_PAUSE_S = 0.1


class Answer(NamedTuple):
    status: int
    text: str

    @property
    def code(self) -> str | None:
        """The error's code, where the answer is one."""
        try:
            said = json.loads(self.text)
        except ValueError:
            return None
        error = said.get("error") if isinstance(said, dict) else None
        return error.get("code") if isinstance(error, dict) else None


class Wire:
    """One connection to a service, on which requests follow each other; a stream has one of its own."""

    def __init__(self, service: Service) -> None:
        self._address = service.url.removeprefix("http://")
        self._connection = HTTPConnection(self._address, timeout=WAIT_S)
        self.asked = 0

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, ask: Ask, by: str) -> Answer:
        """Send a request with a key. A stream is read up to its first pause."""
        self.asked += 1
        path = f"{ask.path}?{urlencode(ask.query)}" if ask.query else ask.path
        headers = {"content-type": "application/json", "authorization": f"Bearer {by}", **ask.headers}
        if path.startswith("/v1/rewards/stream"):
            return self._streamed(path, headers)
        body = None if ask.body is None else json.dumps(ask.body)
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        return Answer(answer.status, answer.read().decode())

    def _streamed(self, path: str, headers: dict[str, str]) -> Answer:
        """Read a stream up to its first event, which every caller here has, and what comes right behind it."""
        with closing(HTTPConnection(self._address, timeout=WAIT_S)) as connection:
            connection.request("GET", path, headers=headers)
            socket = connection.sock
            answer, said = connection.getresponse(), b""
            with closing(answer), suppress(TimeoutError):
                while piece := answer.read1():
                    said += piece
                    if b"data: " in said:
                        socket.settimeout(_PAUSE_S)
            return Answer(answer.status, said.decode())


def leaked(answer: Answer, ask: Ask, of: Names) -> list[str]:
    """Return what an answer tells of an organisation beyond the names that the request had itself."""
    sent, text = ask.sent(), answer.text
    known = [name for name in of.texts().values() if name in sent and name not in (of.namespace, of.policy)]
    for name in sorted(known, key=len, reverse=True):
        text = text.replace(name, "")
    secrets = {what: name for what, name in of.texts().items() if name not in sent}
    return [what for what, secret in secrets.items() if _has(text, secret)]


def _has(text: str, secret: str) -> bool:
    return re.search(rf"(?<![\d.]){secret}(?!\d)", text) is not None if secret.isdigit() else secret in text


def form(answer: Answer, of: Names) -> tuple[int, str | None, str]:
    """Return an answer's status, code and words, without the names that it was asked about, numbers and new ids."""
    text = answer.text
    for name in sorted(of.texts().values(), key=len, reverse=True):
        text = text.replace(name, "NAME")
    return answer.status, answer.code, re.sub(r"\d+(\.\d+)?", "#", _UUID.sub("ID", text))


def written(service: Service) -> None:
    """Wait until the store has all that the log has."""
    log = service.services.log
    sources = [TopicPartition(Topic.TURNS, number) for number in range(log.partitions(Topic.TURNS))]

    def is_written() -> bool:
        ends = {source: log.end(source) for source in sources}
        with service.store.look() as view:
            stored = view.offsets.of_group(WRITER)
        return all(stored.get(source, 0) >= end for source, end in ends.items())

    wait_for(is_written, "all that was said in the store")


def rows_of(service: Service, of: Names) -> set[tuple[str, ...]]:
    """Return all rows of the store that are an organisation's, or have its words."""
    found: set[tuple[str, ...]] = set()
    with service.store.begin() as connection:
        for table in tables.metadata.sorted_tables:
            query, is_known = select(table), False
            for name, own in (("namespace", of.namespace), ("policy", of.policy)):
                if not is_known and name in table.c and (name, own) != ("policy", BASE):
                    query, is_known = query.where(table.c[name] == own), True
            for row in connection.execute(query):
                if is_known or of.word in repr(row):
                    found.add((table.name, repr(row)))
    return found


_MOVES = ("heartbeat_age_s", "resets_in_s", "seen_s_ago", "digest", "sequence", "last_used_at", "last_minute")


def view_of(wire: Wire, of: Names, asks: Iterable[Ask]) -> dict[str, Any]:
    """Return what an organisation sees of itself, without what moves by itself."""
    seen: dict[str, Any] = {}
    for ask in asks:
        answer = wire.ask("GET", ask, key(of.namespace))
        try:
            said = _still(json.loads(answer.text))
        except ValueError:
            said = answer.text
        seen[ask.path] = answer.status, said
    return seen


def _still(said: Any) -> Any:
    if isinstance(said, dict):
        return {name: _still(value) for name, value in said.items() if name not in _MOVES}
    return [_still(each) for each in said] if isinstance(said, list) else said


def differing(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for what, said in before.items():
        if after[what] != said:
            yield f"{what}: {said} became {after[what]}"
