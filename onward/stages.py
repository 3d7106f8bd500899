"""Stages as processes of their own."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from core.errors import ConfigError
from onward.wiring import (
    Foundation,
    Stage,
    build_host,
    build_learner,
    build_releases,
    open_foundation,
    publish_anchor,
)

_STEP_S = 0.1
_ROUTERS_NOTICE_S = 0.5  # they look several times a second


def run_learner(directory: Path) -> None:
    """Until SIGTERM, or until the service that started it is gone."""
    parent = os.getppid()
    foundation = open_foundation(directory)
    ready = foundation.layout.learner_ready
    learner = build_learner(foundation)
    ready.write_text(str(os.getpid()))
    try:
        _run(foundation, learner, parent)
    finally:
        ready.unlink(missing_ok=True)


def run_release(directory: Path, overrides: Mapping[str, str]) -> None:
    """The release controller, until SIGTERM."""
    foundation = open_foundation(directory, overrides)
    _run(foundation, build_releases(foundation, foundation.log, None))


def run_host(directory: Path, name: str, url: str | None, overrides: Mapping[str, str], *, is_child: bool) -> None:
    """The host of one SGLang server, until SIGTERM, or (as a service's child) until that is gone. Raises ConfigError
    for a name that is taken."""
    parent = os.getppid() if is_child else None
    foundation = open_foundation(directory, overrides)
    with _exclusive_name(foundation, name):
        _run(foundation, HostStage(foundation, name, url), parent)


def run_anchor(directory: Path) -> None:
    """Publish and release the given model, if that was not done yet."""
    foundation = open_foundation(directory)
    try:
        publish_anchor(foundation, foundation.log)
    finally:
        foundation.close()


class HostStage:
    """A host and its engine; says in a file when the engine serves what it shall. Ends with what runs finished."""

    def __init__(self, foundation: Foundation, name: str, url: str | None) -> None:
        self._ready = foundation.layout.host_ready(name)
        self._drain_s = foundation.settings.serving.sglang.drain_s
        self._engine, self._host = build_host(foundation, name, url)

    def step(self, timeout_s: float) -> int:
        done = self._host.step(timeout_s)
        if self._host.state == "ok":
            if not self._ready.exists():
                self._ready.write_text(str(os.getpid()))
        else:
            self._ready.unlink(missing_ok=True)
        return done

    def close(self) -> None:
        self._ready.unlink(missing_ok=True)
        self._host.drain()
        began_s = now_s = time.monotonic()
        while now_s - began_s < self._drain_s:
            self._host.step(_STEP_S)
            now_s = time.monotonic()
            if now_s - began_s > _ROUTERS_NOTICE_S and self._engine.is_idle():
                break
        self._host.close()
        self._engine.close()


@contextmanager
def _exclusive_name(foundation: Foundation, name: str) -> Iterator[None]:
    """The lock dies with its process."""
    directory = foundation.layout.host(name)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "host.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"--name {name}: a host of that name runs already") from error
        yield


def _run(foundation: Foundation, stage: Stage, parent: int | None = None) -> None:
    """Step until told to stop, or until `parent` is no longer ours."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        while not stopping.is_set() and parent in (None, os.getppid()):
            stage.step(_STEP_S)
    finally:
        stage.close()
        foundation.close()
