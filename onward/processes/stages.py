"""Stages as processes of their own."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

from core.errors import Unavailable
from core.records.handling import failure_of
from onward.directory.addresses import write_pid
from onward.directory.layout import Layout
from onward.directory.locks import exclusive
from onward.http.metrics_server import OK, metrics_server
from onward.processes.condition import AGAIN_S, Condition
from onward.processes.stage_alarms import StageAlarms, watched
from onward.processes.supervisor import cause_of
from onward.wiring import (
    Foundation,
    Stage,
    announcing,
    build_archive,
    build_host,
    build_judge,
    build_learner,
    build_monitors,
    build_releases,
    build_scorer,
    build_writer,
    open_foundation,
    publish_anchor,
    read_directory,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)
_STEP_S = 0.2
_ROUTERS_NOTICE_S = 0.5  # they look several times a second


def run_ingest(directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """The writer from log to store, until SIGTERM. `child`: the name by which the process that started this one, and
    with which it ends, looks for it."""
    _run(directory, overrides, "ingest", lambda foundation: build_writer(foundation, foundation.log), child)


def run_score(directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """A scorer, until SIGTERM."""
    with ExitStack() as stack:

        def build(foundation: Foundation) -> Stage:
            stack.close()  # of one that ended
            return build_scorer(foundation, foundation.log, stack.enter_context(announcing(foundation)))

        _run(directory, overrides, "score", build, child)


def run_learner(directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """Until SIGTERM. Of several processes that torchrun started, the first is the stage; the others follow it."""
    from learner.model.ranks import joined_ranks
    from learner.rank_group import dismiss, follow

    _, settings = read_directory(directory, overrides)
    with joined_ranks(settings.learner.device) as ranks:
        if not ranks.leads:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # torchrun tells all of them: the first ends first
            follow(ranks)
            return
        _run(directory, overrides, "learn", partial(build_learner, ranks=ranks), child)
        dismiss(ranks)


def run_release(directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """The release controller, until SIGTERM."""
    _run(directory, overrides, "release", lambda foundation: build_releases(foundation, foundation.log, None), child)


def run_watch(directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """The monitors, until SIGTERM."""
    _run(directory, overrides, "watch", lambda foundation: build_monitors(foundation, foundation.log), child)


def run_judge(directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """The judge, until SIGTERM. Raises ConfigError where it is not enabled."""
    _run(directory, overrides, "judge", lambda foundation: build_judge(foundation, foundation.log), child)


def run_archive(directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """The keeper of the log, until SIGTERM. Raises ConfigError where the settings give it nothing to do."""
    _run(directory, overrides, "archive", build_archive, child)


def run_host(
    directory: Path, name: str, url: str | None, overrides: Mapping[str, str], child: str | None = None
) -> None:
    """The host of one SGLang server, until SIGTERM. Raises ConfigError for a name that is taken."""
    lock = Layout(directory.resolve()).host(name) / "host.lock"
    with exclusive(lock, f"--name {name}: a host of that name runs already"):
        _run(directory, overrides, name, lambda foundation: HostStage(foundation, name, url), child)


def run_anchor(directory: Path, overrides: Mapping[str, str]) -> None:
    """Publish and release the given model, if that was not done yet."""
    foundation = open_foundation(directory, overrides)
    try:
        publish_anchor(foundation, foundation.log)
    finally:
        foundation.close()


class HostStage:
    """A host and its engine. Ends with what runs finished."""

    def __init__(self, foundation: Foundation, name: str, url: str | None) -> None:
        self._drain_s = foundation.settings.serving.sglang.timeouts.drain_s
        self._engine, self._host = build_host(foundation, name, url)

    @property
    def state(self) -> str:
        """`ok` while the engine serves what it shall."""
        return self._host.state

    def step(self, timeout_s: float) -> int:
        return self._host.step(timeout_s)

    def close(self) -> None:
        self._host.drain()
        began_s = now_s = time.monotonic()
        while now_s - began_s < self._drain_s:
            self._host.step(_STEP_S)
            now_s = time.monotonic()
            if now_s - began_s > _ROUTERS_NOTICE_S and self._engine.is_idle():
                break
        try:
            self._host.close()
        finally:
            self._engine.close()


# ---------------------------------------------------------------------------------------------- one process


def _run(
    directory: Path,
    overrides: Mapping[str, str],
    name: str,
    build: Callable[[Foundation], Stage],
    child: str | None,
) -> None:
    """Step until told to stop, or until the parent is gone whose child this is. What a stage needs may come late, and
    go: it is then made anew, and goes on from what is written. Log and store are not: they connect by themselves, and
    take their time."""
    parent = os.getppid() if child is not None else None
    _, settings = read_directory(directory, overrides)
    condition = Condition(name)
    with _told_to_stop() as stopping, metrics_server(settings.metrics, name, condition.now):
        life = _Life(condition, stopping, parent)
        foundation = life.wait_for(lambda: open_foundation(directory, overrides))
        if foundation is None:
            return
        with closing(foundation), _readiness(foundation.layout, child) as tell:
            own = _Own(child or name, condition, foundation)
            own.keep_going(lambda: _keep_running(partial(build, foundation), life, tell))


class _Own:
    """This process' stage, for the alarm that it is down: an error ends the process, and whoever started it starts it
    again. Another that watches this process as its child sees to the same alarm, and knows less of why."""

    restarts = 0

    def __init__(self, name: str, condition: Condition, foundation: Foundation) -> None:
        self.name, self._condition = name, condition
        self.fault: str | None = None
        self._alarms = StageAlarms([self], foundation.store, foundation.clock, foundation.settings.stages.well_s)

    @property
    def state(self) -> str:
        return self._condition.now()

    def keep_going(self, go: Callable[[], None]) -> None:
        """Raises what `go` raises, once the alarm is open, where the store takes it."""
        with watched(self._alarms):
            failure = failure_of(go)
        if failure is not None:
            self.fault = cause_of(failure)
            unsaid = failure_of(self._alarms.look)
            if unsaid is not None:
                logger.warning("%s is down, and the store was not told: %s", self.name, unsaid)
            raise failure


class _Life:
    """Of a process, until it is told to stop or its parent is gone."""

    def __init__(self, condition: Condition, stopping: threading.Event, parent: int | None) -> None:
        self.condition = condition
        self._stopping, self._parent = stopping, parent

    def is_over(self) -> bool:
        return self._stopping.is_set() or self._parent not in (None, os.getppid())

    def wait_for(self, make: Callable[[], T]) -> T | None:
        """None: it was over before what is needed was there."""
        while not self.is_over():
            try:
                return make()
            except Unavailable as error:
                self.pause(error)
        return None

    def pause(self, error: Unavailable) -> None:
        self.condition.waits(error)
        self._stopping.wait(AGAIN_S)


def _keep_running(build: Callable[[], Stage], life: _Life, tell: Callable[[bool], None]) -> None:
    while not life.is_over():
        _run_stage(build, life, tell)


def _run_stage(build: Callable[[], Stage], life: _Life, tell: Callable[[bool], None]) -> None:
    """As long as it has what it needs."""
    stage = life.wait_for(build)
    if stage is None:
        return
    try:
        with closing(stage):
            life.condition.is_of(stage)
            while not life.is_over():
                stage.step(_STEP_S)
                tell(life.condition.now() == OK)
    except Unavailable as error:
        tell(False)
        life.pause(error)


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    yield stopping


@contextmanager
def _readiness(layout: Layout, child: str | None) -> Iterator[Callable[[bool], None]]:
    """A file with the pid, there while the stage is ready, for the process that started it."""
    if child is None:
        yield lambda _: None
        return
    file, was_ready = layout.ready(child), False
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)

    def tell(is_ready: bool) -> None:
        nonlocal was_ready
        if is_ready and not was_ready:
            write_pid(file)
        elif was_ready and not is_ready:
            file.unlink(missing_ok=True)
        was_ready = is_ready

    try:
        yield tell
    finally:
        tell(False)
