"""An engineer's stack on one machine, to inject faults into.

It has its own Kafka, Postgres and Redis, and on them a process tree with two of each stage, two SGLang engines and the
learner."""

import json
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
from ports import free_ports
from processes import words_of
from service_tree import Service, wait_for
from services import require_services
from sglang_service import sglang_service

from deploy.services.stack import Stack
from onward.directory.layout import Layout
from onward.replays.history import await_log
from onward.wiring.foundation import Foundation, open_foundation

BACK_TIMEOUT_S = 400  # longer than an engine may take to start
PROCESSES = {"api": 2, "ingest": 2, "score": 2, "release": 2}
_METRICS_PORTS = 16
_TAIL = 4000
SETTINGS: dict[str, Any] = {
    "serving.sglang.replicas": 2,
    "serving.versions.min_swap_interval_s": 0.5,
    "serving.fleet.engine_wait_s": 60.0,
    "api.feedback.lookup_s": 10.0,  # without Redis only the writer can tell, and the machine may be busy
    "learner.enabled": "true",
    "learner.batch.turns": 32,
    "learner.batch.min_turns": 8,
    "release.canary.enabled": "off",
    "monitors.hold_releases": "false",  # these users judge by chance, and nobody is there to acknowledge an alarm
} | {f"processes.{stage}": count for stage, count in PROCESSES.items()}


@contextmanager
def own_stack() -> Iterator[Stack]:
    """Yield running Kafka, Postgres and Redis that nobody else uses.

    Their directory is readable by all, since PostgreSQL runs as another user."""
    require_services()
    directory = Path(tempfile.mkdtemp(prefix="onward-faults-"))
    directory.chmod(0o755)
    stack = Stack(directory)
    try:
        stack.up()
        yield stack
    finally:
        for server in stack.servers:
            server.kill()
        shutil.rmtree(directory, ignore_errors=True)


def settings_of(stack: Stack) -> dict[str, Any]:
    """Return the settings that point to the stack, as `--set` has them."""
    return {
        "mode": "distributed",
        "kafka.bootstrap_servers": f'["{stack.kafka.address}"]',
        "kafka.client.session_timeout_s": "3.0",
        "postgres.url": stack.postgres.url,
        "redis.url": stack.redis.url,
    }


class World:
    def __init__(self, stack: Stack, service: Service, foundation: Foundation, metrics_port: int) -> None:
        self.stack, self.service, self.foundation = stack, service, foundation
        self.urls = service.urls  # kept: replicas come back where they were
        self._metrics_port = metrics_port
        self.killed: list[tuple[str, float, float]] = []
        """Killed replicas of the API: URL, time of the kill, time of the return (monotonic)."""
        self._ill: str | None = None

    # ------------------------------------------------------------------------------------------ processes

    def process(self, name: str) -> psutil.Process:
        """Return a stage's process.

        Raises LookupError while there is none."""
        for child in psutil.Process(self.service.pid).children():
            if name in words_of(child):
                return child
        raise LookupError(name)

    def names(self, stage: str) -> list[str]:
        """Return the names of a stage's processes."""
        count = SETTINGS["serving.sglang.replicas"] if stage == "engine" else PROCESSES.get(stage)
        return [stage] if count is None else [f"{stage}-{number}" for number in range(1, count + 1)]

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL and return when its successor is ready."""
        before, began_s = self.process(name).pid, time.monotonic()
        self.process(name).kill()
        try:
            wait_for(lambda: self.is_ready(name, before), BACK_TIMEOUT_S, f"{name}'s return")
        except pytest.fail.Exception as failed:
            pytest.fail(f"{failed}; {self.last_words(name)}")
        if name in self.names("api"):
            self.killed.append((self.urls[self.names("api").index(name)], began_s, time.monotonic()))

    def is_ready(self, name: str, before: int = 0) -> bool:
        try:
            pid = self.process(name).pid
        except LookupError:
            return False
        ready = self.service.directory / "ready" / f"{name}.pid"
        with suppress(FileNotFoundError):  # it is made anew
            return pid != before and ready.read_text() == str(pid)
        return False

    def all_names(self) -> list[str]:
        """Return the names of all processes, in the order in which `onward run` starts them."""
        return [name for stage in (*PROCESSES, "learner", "monitors", "engine") for name in self.names(stage)]

    def wait_until_well(self) -> None:
        """Wait until everything is ready again; after one timeout, later calls fail at once."""
        if self._ill is not None:
            pytest.fail(f"ill since an earlier fault: {self._ill}", pytrace=False)
        for server in self.stack.servers:  # of a fault that was cut short
            server.up()
        deadline_s = time.monotonic() + BACK_TIMEOUT_S
        while wrong := self._wrong():
            if time.monotonic() > deadline_s:
                self._ill = wrong
                pytest.fail(f"not well again within {BACK_TIMEOUT_S} s: {wrong}", pytrace=False)
            time.sleep(0.05)

    def _wrong(self) -> str:
        """Describe processes that are not ready, components that are not ok, and services with other ports."""
        faults: dict[str, Any] = {name: "not ready" for name in self.all_names() if not self.is_ready(name)}
        faults |= {url: wrong for url in self.urls if (wrong := self.readiness(url))}
        if faults:
            faults["services"] = {server.name: (server.alive, server.ports) for server in self.stack.servers}
        return str(faults) if faults else ""

    # ------------------------------------------------------------------------------------------ what they say

    def last_words(self, name: str) -> str:
        """Return the state and last log lines of a process, its engine and the whole tree, for a failure's message."""
        try:
            process = self.process(name)
            state = f"{process} with {process.children()}"
        except LookupError:
            state = "there is no such process"
        engine = Layout(self.service.directory).host(name) / "sglang.log"
        logs = {"engine": engine.read_text()[-_TAIL:] if engine.exists() else "", "tree": self.service.log_text()}
        return "\n".join([state, *(f"{which}: {text[-_TAIL:]}" for which, text in logs.items())])

    def readiness(self, url: str) -> dict[str, str]:
        """Return the components that `/readyz` reports as not ok."""
        try:
            return wrong_with(url)
        except OSError as error:
            return {"api": str(error)}

    def says(self, component: str, what: str = "") -> bool:
        """Return whether all replicas of the API report that a component is not well, in these words."""
        return all(what in self.readiness(url).get(component, "\0") for url in self.urls)

    def metric(self, name: str, line: str) -> float:
        """Return a metric of one process from its `/metrics`; 0 while the line is missing."""
        port = self._metrics_port + self.all_names().index(name)
        url = self.urls[self.names("api").index(name)] if name in self.names("api") else f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(each.rpartition(" ")[2]) for each in lines if each.rpartition(" ")[0] == line), 0.0)


def wrong_with(url: str) -> dict[str, str]:
    """Return the components that `/readyz` reports as not ok.

    Raises OSError if nobody answers."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=30) as response:
            components = json.load(response)["components"]
    except urllib.error.HTTPError as error:
        with error:
            components = json.load(error)["components"]
    except HTTPException as error:  # killed amid its answer
        raise OSError(f"{url}: {error!r}") from error
    return {name: state for name, state in components.items() if state != "ok"}


@contextmanager
def fault_world(directory: Path) -> Iterator[World]:
    """Yield the world once all of it is ready."""
    with ExitStack() as stack:
        services = stack.enter_context(own_stack())
        port = free_ports(_METRICS_PORTS)
        settings = SETTINGS | settings_of(services) | {"metrics.port": port}
        service = stack.enter_context(sglang_service(directory, settings))
        foundation = open_foundation(service.directory, service.overrides)
        stack.callback(foundation.close)
        await_log(foundation.log)
        yield World(services, service, foundation, port)
