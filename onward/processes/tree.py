"""`onward run` in mode `distributed`: every stage as processes of its own, on one machine, until stopped."""

import logging
import signal
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import FrameType

from core.clock import SystemClock
from core.errors import Unavailable
from core.settings import Settings
from onward.directory.addresses import address_of, free_port, write_address
from onward.directory.layout import Layout
from onward.http.metrics_server import waiting_server
from onward.processes.condition import AGAIN_S, Condition
from onward.processes.stage_alarms import StageAlarms, watched
from onward.processes.supervisor import ChildProcess
from onward.wiring import Child, host_children, migrate, open_store

_LOOK_EVERY_S = 0.1
logger = logging.getLogger(__name__)


def run_tree(layout: Layout, settings: Settings, overrides: Mapping[str, str]) -> None:
    """Raises ConfigError naming the setting at fault."""
    stopping = _told_to_stop()
    if not _migrate_patiently(settings, stopping):
        return
    children = [
        ChildProcess(
            child.name,
            child.arguments,
            child.ready,
            {**overrides, **metrics_port(settings, number)},
            settings.stages,
        )
        for number, child in enumerate(_children(layout, settings))
    ]
    store = open_store(layout, settings)
    for child in children:
        child.start()
    try:
        with watched(StageAlarms(children, store, SystemClock(), settings.stages.well_s)):
            _announce(layout, settings, children, stopping)
            stopping.wait()
    finally:
        layout.address.unlink(missing_ok=True)
        for child in children:
            child.terminate()
        for child in children:
            child.stop()
        store.close()


def _told_to_stop() -> threading.Event:
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return stopping


def _migrate_patiently(settings: Settings, stopping: threading.Event) -> bool:
    """Services may come later than we do: until then the API's first address says so. False: told to stop meanwhile."""
    condition = Condition("onward run")
    with ExitStack() as waiting:
        while not stopping.is_set():
            try:
                migrate(settings)
                return True
            except Unavailable as error:
                if not condition.is_waiting:
                    waiting.enter_context(waiting_server(settings.api, "start", condition.now))
                condition.waits(error)
                stopping.wait(AGAIN_S)
    return False


def _announce(layout: Layout, settings: Settings, children: list[ChildProcess], stopping: threading.Event) -> None:
    """Where the API is, once everything works."""
    while not all(child.state == "ok" for child in children):
        if stopping.wait(_LOOK_EVERY_S):
            return
    urls = [address_of(layout, child.pid) for child in children if child.name.startswith("api-")]
    if urls:
        write_address(layout.address, urls[0], urls, settings.api.tls.certificate)
    print(f"onward serves at {', '.join(urls)}  (directory {layout.root})", flush=True)


def _children(layout: Layout, settings: Settings) -> list[Child]:
    counts = settings.processes
    children = [_api(layout, settings, number) for number in range(counts.api)]
    for stage, count in (("ingest", counts.ingest), ("score", counts.score), ("release", counts.release)):
        children += [_child(layout, f"{stage}-{number}", stage) for number in range(1, count + 1)]
    if settings.learner.enabled:
        children.append(_child(layout, "learner", "learn"))
    if settings.monitors.enabled:
        children.append(_child(layout, "monitors", "watch"))
    if settings.judge.enabled:
        children.append(_child(layout, "judge", "judge"))
    if settings.archive.has_work:
        children.append(_child(layout, "archive", "archive"))
    return children + host_children(layout, settings)


def _api(layout: Layout, settings: Settings, number: int) -> Child:
    """On a port that it keeps when it is started again."""
    port = settings.api.port + number if settings.api.port else free_port(settings.api.host)
    return _child(layout, f"api-{number + 1}", "api", "--port", str(port))


def _child(layout: Layout, name: str, command: str, *arguments: str) -> Child:
    return Child(name, (command, str(layout.root), "--child", name, *arguments), layout.ready(name))


def metrics_port(settings: Settings, number: int) -> dict[str, str]:
    """Of the children: a port each."""
    port = settings.metrics.port
    return {} if not port else {"ONWARD_METRICS__PORT": str(port + number)}
