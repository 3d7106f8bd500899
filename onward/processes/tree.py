"""`onward run` in mode `distributed`: every stage as processes of its own, on one machine."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from core.clock import SystemClock
from core.settings import Settings
from core.stages.ending import Ending, told_by_signals
from onward.directory.addresses import address_of, write_address
from onward.directory.layout import Layout
from onward.http.listeners import let_go
from onward.http.waiting import StartWaiting
from onward.processes.serving_at import say_serving
from onward.processes.stage_alarms import StageAlarms, watched
from onward.processes.supervisor import ChildProcess
from onward.wiring.engines import API, Child, api_child, child_of, host_children
from onward.wiring.foundation import open_store
from onward.wiring.migrate import migrate
from onward.wiring.stages import STAGES

_LOOK_EVERY_S = 0.1


def run_tree(
    layout: Layout, settings: Settings, overrides: Mapping[str, str], listeners: Sequence[socket.socket]
) -> None:
    """Run all processes until told to stop. Raises ConfigError naming the setting at fault.

    `listeners` hold the addresses of those that answer, until they are started."""
    ending = told_by_signals()
    if not _migrate_patiently(settings, ending, listeners[0] if listeners else None):
        return
    children = [
        ChildProcess(
            child.name,
            child.arguments,
            child.ready,
            {**overrides, **own_ports(settings, number)},
            settings.stages,
        )
        for number, child in enumerate(_children(layout, settings))
    ]
    store = open_store(layout, settings)
    let_go(listeners)
    for child in children:
        child.start()
    try:
        with watched(StageAlarms(children, store, SystemClock(), settings.stages.well_s)):
            _announce(layout, settings, children, ending)
            ending.wait()
    finally:
        layout.address.unlink(missing_ok=True)
        for child in children:
            child.terminate()
        for child in children:
            child.stop()
        store.close()


def _migrate_patiently(settings: Settings, ending: Ending, listener: socket.socket | None) -> bool:
    """Migrate topics and tables once the services are available, and return False if told to stop before.

    Until then the API's first address answers what is missing."""
    with ExitStack() as stack:
        waiting = StartWaiting("onward run", settings.api, stack, listener)
        ending.made(lambda: migrate(settings), waiting.waits)
    return not ending.is_due()


def _announce(layout: Layout, settings: Settings, children: list[ChildProcess], ending: Ending) -> None:
    """Write the API's address to its file, once everything works."""
    while not all(child.state == "ok" for child in children):
        if ending.wait(_LOOK_EVERY_S):
            return
    urls = [address_of(layout, child.pid) for child in children if child.name.startswith(API)]
    if urls:
        write_address(layout.address, urls[0], urls, settings.api.tls.certificate)
    say_serving(urls, layout.root)


def _children(layout: Layout, settings: Settings) -> list[Child]:
    apis = [api_child(layout, settings, number) for number in range(settings.processes.api)]
    stages = [child_of(layout, name, row.command) for row in STAGES for name in row.names(settings)]
    return apis + stages + host_children(layout, settings)


def own_ports(settings: Settings, number: int) -> dict[str, str]:
    """Return the environment that gives the child of this number ports of its own."""
    ports = {"METRICS__PORT": settings.metrics.port, "SERVING__SHARING__PORT": settings.serving.sharing.port}
    return {f"ONWARD_{name}": str(port + number) for name, port in ports.items() if port}
