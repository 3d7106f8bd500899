"""Stages as processes of their own: one runner each, with its metrics, its readiness and its alarm."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from core.errors import Unavailable
from core.records.handling import failure_of
from core.secrets import redacted
from core.stages.ending import ignore_signals, told_by_signals
from core.stages.lease import Lease
from core.stages.rounds import Rounds
from core.stages.runner import Runner, cause_of
from core.stages.stage import OK, Stage
from core.stages.start_steps import say_step, tell_steps
from onward.directory.addresses import write_pid
from onward.directory.layout import Layout
from onward.directory.locks import exclusive
from onward.http.metrics_server import metrics_server
from onward.processes.stage_alarms import StageAlarms, look_last, watched
from onward.wiring.engines import build_host, publish_anchor
from onward.wiring.foundation import Foundation, open_foundation, read_directory
from onward.wiring.service import announcing
from onward.wiring.sharing import shared_weights
from onward.wiring.stages import Neighbours, StageRow, row_of
from onward.wiring.tracing import traced

_STEP_S = 0.2
logger = logging.getLogger(__name__)
_ROUTERS_NOTICE_S = 0.5  # they look several times a second
Make = Callable[[Foundation], Stage]
Leased = Callable[[Foundation], Lease | None]


def run_stage(command: str, directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """Run a stage of `onward.wiring.stages` until SIGTERM.

    `child` is the name by which the process that started this one looks for it; this process ends with that one. Raises
    ConfigError if the settings give the stage nothing to do."""
    with ExitStack() as stack:
        _run_row(row_of(command), None, stack, directory, overrides, child)


def run_learner(directory: Path, overrides: Mapping[str, str], child: str | None = None) -> None:
    """Run the learner; of several processes that torchrun started, the first is the stage and the others follow it."""
    from learner.model.ranks import joined_ranks
    from learner.rank_group import dismiss, follow
    from onward.wiring.learner import build_learner

    _, settings = read_directory(directory, overrides)
    with joined_ranks(settings.learner.device) as ranks, ExitStack() as stack:
        if not ranks.leads:
            ignore_signals(signal.SIGTERM, signal.SIGINT)  # torchrun tells all of them: the first ends first
            follow(ranks)
            return
        _run_row(row_of("learn"), partial(build_learner, ranks=ranks), stack, directory, overrides, child)
        dismiss(ranks)


def run_host(
    directory: Path, name: str, url: str | None, overrides: Mapping[str, str], child: str | None = None
) -> None:
    """Run the host of one SGLang server until SIGTERM. Raises ConfigError for a name that is taken."""
    layout, _ = read_directory(directory, overrides)
    lock = layout.host(name) / "host.lock"
    with exclusive(lock, f"--name {name}: a host of that name runs already"):
        _run(directory, overrides, name, child, lambda foundation: HostStage(foundation, name, url), lambda _: None)


def run_anchor(directory: Path, overrides: Mapping[str, str]) -> None:
    """Publish and release the given model, if that was not done yet."""
    foundation = open_foundation(directory, overrides)
    try:
        publish_anchor(foundation, foundation.log)
    finally:
        foundation.close()


class HostStage(Stage):
    """A host and its engine. It ends once the running requests are finished, or after `drain_s`."""

    def __init__(self, foundation: Foundation, name: str, url: str | None) -> None:
        self._drain_s = foundation.settings.serving.sglang.timeouts.drain_s
        self._sharing = ExitStack()
        weights, shares = self._sharing.enter_context(shared_weights(foundation, name))
        self._engine, self._host = build_host(foundation, name, url, weights, shares)
        self.woken = self._host.woken

    @property
    def state(self) -> str:
        """`ok` while the engine serves what it should."""
        return self._host.state

    def tick(self) -> float:
        return self._host.tick()

    def close(self) -> None:
        self._host.drain()
        rounds = Rounds("host", self._host)
        began_s = now_s = time.monotonic()
        while now_s - began_s < self._drain_s:
            rounds.step(_STEP_S)
            now_s = time.monotonic()
            if now_s - began_s > _ROUTERS_NOTICE_S and self._engine.is_idle():
                break
        with self._sharing, closing(self._engine):
            self._host.close()


# ---------------------------------------------------------------------------------------------- one process


def _run_row(
    row: StageRow,
    make: Make | None,
    stack: ExitStack,
    directory: Path,
    overrides: Mapping[str, str],
    child: str | None,
) -> None:
    """Run the stage of one row of the table; `make` stands in for the row's own."""

    def from_row(foundation: Foundation) -> Stage:
        beside = Neighbours(foundation.log, lambda: stack.enter_context(announcing(foundation)))
        return row.make(foundation, beside)

    _run(directory, overrides, row.command, child, make or from_row, row.lease)


def _run(
    directory: Path, overrides: Mapping[str, str], name: str, child: str | None, make: Make, lease: Leased
) -> None:
    """Run a stage until told to stop, or until the parent process is gone whose child this is.

    What the stage needs may become available late. Log and store are opened once: they reconnect by themselves, and are
    slow to open."""
    _, settings = read_directory(directory, overrides)
    ending = told_by_signals(parent=os.getppid() if child is not None else None)
    health = "starting"
    runner: Runner | None = None

    def waits(error: Unavailable) -> None:
        nonlocal health
        health = redacted(str(error))
        logger.warning("%s waits: %s", name, error)

    shown = metrics_server(settings.metrics, name, lambda: health if runner is None else runner.health)
    with traced(settings, child or name), shown:
        foundation = ending.made(lambda: open_foundation(directory, overrides), waits)
        if foundation is None:
            return
        tell_steps(foundation.layout.starts, child or name, is_child=child is not None)
        say_step(child or name, "opened the log and the store")
        with closing(foundation), _readiness(foundation.layout, name, child) as tell:
            runner = Runner(
                child or name,
                partial(make, foundation),
                settings.stages,
                lease=lease(foundation),
                ending=ending,
                on_round=tell,
            )
            _keep_going(runner, foundation)


def _keep_going(runner: Runner, foundation: Foundation) -> None:
    """Run the stage, and on an error open its alarm and raise: the process ends, and its parent starts it again.

    The alarm stays unopened if the store is unavailable. A parent that watches this process sees to the same alarm, but
    knows less of the cause."""
    alarms = StageAlarms([runner], foundation.store, foundation.clock, foundation.settings.stages.well_s)
    with watched(alarms):
        failure = failure_of(runner.run)
    if failure is not None:
        runner.fault = cause_of(failure)
        look_last(alarms)
        raise failure


@contextmanager
def _readiness(layout: Layout, name: str, child: str | None) -> Iterator[Callable[[str], None]]:
    """Say when the stage's health becomes `ok`, and keep a file with a child's pid while it is, for its parent."""
    file, was_ready = None if child is None else layout.ready(child), False
    if file is not None:
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)

    def tell(health: str) -> None:
        nonlocal was_ready
        is_ready = health == OK
        if is_ready and not was_ready:
            if file is not None:
                write_pid(file)
            say_step(child or name, "is ready", is_last=True)
        elif was_ready and not is_ready and file is not None:
            file.unlink(missing_ok=True)
        was_ready = is_ready

    try:
        yield tell
    finally:
        if file is not None:
            file.unlink(missing_ok=True)
