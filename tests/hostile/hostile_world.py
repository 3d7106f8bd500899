"""A running service with keys, its users in a process of their own, and the attackers."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from hostile_requests import Attack
from service_tree import Service, wait_for
from yarl import URL

CROWD_KEY, PLUGIN_KEY, READER_KEY, ADMIN_KEY = "of-the-crowd", "of-a-plugin", "of-a-reader", "of-the-operator"
NEIGHBOUR_KEY = "of-a-neighbour"
SETTINGS = f"""
[api.connections]
header_s = 3.0
body_s = 3.0
write_s = 3.0

[[api.keys]]
key = "{CROWD_KEY}"
namespace = "crowd"
scopes = ["chat", "feedback"]

[[api.keys]]
key = "{PLUGIN_KEY}"
namespace = "strangers"
scopes = ["chat", "feedback"]

[[api.keys]]
key = "{READER_KEY}"
namespace = "crowd"
scopes = ["read"]

[[api.keys]]
key = "{NEIGHBOUR_KEY}"
namespace = "neighbours"
scopes = ["chat", "feedback", "read"]

[[api.keys]]
key = "{ADMIN_KEY}"
namespace = "operators"
scopes = ["chat", "feedback", "read", "admin"]
"""
AT_ONCE = 4  # attackers
_PATIENCE_S = 120.0
_TRIES_GRAMMARS = "core.grammars.trial_process"
_LOOKS_S = 0.1


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@dataclass
class Counts:
    """The results of one kind of attack."""

    sent: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Phases:
    """Phases in turn, each with its beginning (wall clock) and the peak memory in it, in all and by process."""

    def __init__(self, world: "World") -> None:
        self.began_at: dict[str, float] = {}
        self.at_peak: dict[str, dict[str, int]] = {}
        self._world = world
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Phases":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def begin(self, name: str) -> None:
        self.at_peak[name] = self._world.held_bytes()
        self.began_at[name] = time.time()

    @property
    def peak_bytes(self) -> dict[str, int]:
        return {name: sum(held.values()) for name, held in self.at_peak.items()}

    def between(self) -> Iterator[tuple[str, float, float]]:
        """Yield each phase with its beginning and end; the last one has no end and is left out."""
        moments = list(self.began_at.items())
        for (name, began_at), (_, ended_at) in pairwise(moments):
            yield name, began_at, ended_at

    def _watch(self) -> None:
        while not self._over.wait(_LOOKS_S):
            if self.at_peak:
                name, peak = list(self.at_peak.items())[-1]
                self.at_peak[name] = max(peak, self._world.held_bytes(), key=lambda held: sum(held.values()))


class World:
    def __init__(self, service: Service, directory: Path) -> None:
        self.service = service
        self.directory = directory
        self.counts: dict[str, Counts] = {}
        self._crowd_files = 0

    @contextmanager
    def crowd(self) -> Iterator[dict[str, Any]]:
        """Run users within the block; afterwards the dictionary holds what they saw."""
        self._crowd_files += 1
        output = self.directory / f"crowd-{self._crowd_files}.json"
        command = [sys.executable, str(Path(__file__).with_name("hostile_crowd.py")), self.service.url, str(output)]
        process = subprocess.Popen(command, env={**os.environ, "ONWARD_CROWD_KEY": CROWD_KEY})
        seen: dict[str, Any] = {}
        try:
            yield seen
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(240)
        seen.update(json.loads(output.read_text()))

    def routes(self) -> dict[str, list[str]]:
        """Return the methods of each path in the service's OpenAPI document."""
        paths = self.get("/openapi.json")["paths"]
        return {path: [method.upper() for method in methods] for path, methods in paths.items()}

    def get(self, path: str, key: str = ADMIN_KEY) -> Any:
        return json.loads(self._read(path, key))

    def _read(self, path: str, key: str) -> bytes:
        request = urllib.request.Request(self.service.url + path, headers=bearer(key))
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    def told(self, path: str, key: str | None, body: object = None, **headers: str) -> tuple[int, str]:
        """Return the status and the text that whoever has this key is answered with; a POST where there is a body."""
        sent = None if body is None else json.dumps(body).encode()
        known = {} if key is None else bearer(key)
        request = urllib.request.Request(
            self.service.url + path, sent, {**known, **headers, "Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def sample(self, name: str) -> float:
        """Return the number that `/metrics` tells under a name without labels."""
        lines = self._read("/metrics", ADMIN_KEY).decode().splitlines()
        (value,) = (line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name)
        return float(value)

    def get_or_none(self, path: str, key: str) -> Any:
        """Return the answer, or None for a 404."""
        try:
            return self.get(path, key)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
            raise

    def releases(self, state: str | None = None) -> list[dict[str, Any]]:
        """Return the chain of releases, the oldest first; only those of one state if it is given."""
        found: list[dict[str, Any]] = self.get("/v1/releases?limit=1000")["data"]
        return [each for each in found if state in (None, each["state"])]

    def answered(self) -> int:
        """Return the number of turns answered since the service started."""
        return int(self.get("/v1/status")["turns"]["answered"])

    def count(self, kind: str, sent: int) -> None:
        """Count requests that have no answer."""
        self.counts.setdefault(kind, Counts()).sent += sent

    def attack(self, attacks: Iterable[Attack], at_once: int = AT_ONCE) -> None:
        asyncio.run(self._attack(iter(attacks), at_once))

    async def _attack(self, attacks: Iterator[Attack], at_once: int) -> None:
        timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            async def attacker() -> None:
                for attack in attacks:  # shared: each takes the next one
                    await self._send(session, attack)

            await asyncio.gather(*(attacker() for _ in range(at_once)))

    async def _send(self, session: aiohttp.ClientSession, attack: Attack) -> None:
        """Send it; while the service says that it is full, again after as long as it asks for."""
        counts = self.counts.setdefault(attack.kind, Counts())
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            counts.sent += 1
            try:
                wait_s = await self._sent(session, attack, counts, time.monotonic() >= deadline_s)
            except (aiohttp.ClientError, TimeoutError) as error:
                counts.answers[0] += 1
                counts.wrong.append(f"{attack.name}: {type(error).__name__} {error}")
                return
            if wait_s is None:
                return
            await asyncio.sleep(wait_s)

    async def _sent(
        self, session: aiohttp.ClientSession, attack: Attack, counts: Counts, is_last: bool
    ) -> float | None:
        """Send it once; return the seconds after which to ask again, or None once it is answered for good."""
        headers = {**bearer(PLUGIN_KEY), "Content-Type": "application/json", **attack.headers}
        url = URL(self.service.url + attack.path, encoded=True)
        async with session.request(attack.method, url, data=_body(attack), headers=headers) as response:
            counts.answers[response.status] += 1
            is_stream = response.content_type == "text/event-stream"
            text = "" if is_stream else (await response.read()).decode(errors="replace")
            if response.status in attack.answers:
                return None
            if response.status == HTTPStatus.SERVICE_UNAVAILABLE and "Retry-After" in response.headers and not is_last:
                return float(response.headers["Retry-After"])
            counts.wrong.append(f"{attack.name}: {response.status} {text[:200]}")
            return None

    # ------------------------------------------------------------------------------------------ how it is

    def held_bytes(self) -> dict[str, int]:
        """Return the resident memory of the service and of all its children, by process.

        A child that was forked a moment ago, and has not begun its own program, has its parent's memory and no more."""
        service = psutil.Process(self.service.pid)
        programs: dict[int, list[str]] = {}
        found = {}
        for process in [service, *service.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                program = programs[process.pid] = process.cmdline()
                if programs.get(process.ppid()) != program:
                    found[f"{process.pid} {' '.join(program[1:4])}"] = int(process.memory_info().rss)
        return found

    def tried_s(self) -> dict[int, float]:
        """Return the seconds of a processor that each process took in which grammars are tried."""
        found = {}
        for process in psutil.Process(self.service.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if _TRIES_GRAMMARS in process.cmdline():
                    taken = process.cpu_times()
                    found[process.pid] = taken.user + taken.system
        return found

    def faults(self) -> dict[str, str]:
        """Return the components that `/readyz` reports as not ok."""
        return {name: state for name, state in self.get("/readyz")["components"].items() if state != "ok"}

    def wait_until_read(self, timeout_s: float = 120) -> None:
        """Wait until the writer and the scorer have read the whole log."""
        wait_for(lambda: self._lag() == 0, timeout_s, "all stages at the log's end")

    def _lag(self) -> int:
        """Return how far the writer and the scorer are behind.

        The learner is left out: it holds turns back for its next version."""
        stages = {each["stage"]: each["behind"] for each in self.get("/v1/stages")["data"]}
        return sum(stages[name] for name in ("writer", "scorer"))


def _body(attack: Attack) -> io.BytesIO | None:
    """Return the body as a file.

    Aiohttp warns of large bodies in one piece, which block its event loop."""
    return None if attack.body is None else io.BytesIO(attack.body)


def percentile(taken: Iterable[tuple[float, float]], share: float, between: tuple[float, float]) -> float:
    """Return the percentile of latencies in seconds, over requests that began between two moments."""
    found = sorted(seconds for began, seconds in taken if between[0] <= began < between[1])
    return found[min(int(share * len(found)), len(found) - 1)] if found else float("nan")
