"""`onward run`, the whole product in one process tree, and `onward api`, its HTTP process alone."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path

from core.errors import ConfigError
from core.settings.processes import bounds_of_each
from core.stages.ending import Ending
from core.stages.runner import Runner
from core.stages.start_steps import say_step, tell_steps
from onward.directory.addresses import address_of, announce, own_address, refuse_folder
from onward.directory.locks import exclusive
from onward.directory.private import own_folder
from onward.http.listeners import held, let_go
from onward.http.server import HttpServer
from onward.http.tls import server_context
from onward.http.waiting import StartWaiting
from onward.processes.serving_at import say_serving
from onward.processes.stage_alarms import StageAlarms, watched
from onward.processes.supervisor import ChildProcess
from onward.processes.tree import own_ports, run_tree
from onward.wiring.engines import API
from onward.wiring.foundation import Foundation, is_distributed, open_foundation, read_directory
from onward.wiring.service import HttpService, build_api, build_app, build_service, children_of
from onward.wiring.tracing import traced

_SWITCH_INTERVAL_S = 0.0001  # the engine takes the interpreter back after each of its operations: decision 0002
_OK = "ok"
_LOOK_EVERY_S = 0.1


def run_service(directory: Path, overrides: Mapping[str, str]) -> None:
    """Run the whole product until SIGINT or SIGTERM.

    Raises ConfigError when the directory is in use or a setting is wrong."""
    layout, settings = read_directory(directory, overrides)
    server_context(settings.api.tls)
    refuse_folder(layout.address)
    if settings.processes.api == 0 and not is_distributed(settings):
        raise ConfigError("settings: processes.api: 0: outside mode `distributed` the service itself answers")
    with (
        exclusive(layout.lock, f"{layout.root}: another service runs on this directory"),
        held(settings.api, settings.processes.api) as listeners,
    ):
        if is_distributed(settings):
            run_tree(layout, settings, overrides, listeners)
        else:
            with (
                traced(settings, "service"),
                _opened(directory, overrides) as foundation,
                _children(foundation) as children,
            ):
                _serve(build_service(foundation), children, [layout.address], listeners)


def run_api(
    directory: Path, overrides: Mapping[str, str], child: str | None = None, *, is_beside: bool = False
) -> None:
    """Run one replica of the API until SIGINT or SIGTERM; `is_beside` the first process of a service on this machine.

    What it needs may become available late; until then its answers say so. `child` is the name by which the process
    that started this one looks for it. Raises ConfigError as `run_service` does."""
    layout, settings = read_directory(directory, overrides)
    server_context(settings.api.tls)
    with ExitStack() as stack:
        listeners = stack.enter_context(held(settings.api))
        layout.apis.mkdir(exist_ok=True)
        announced = [own_address(layout)] if child is None else [own_address(layout), layout.ready(child)]
        stack.enter_context(traced(settings, child or "api"))
        build = partial(build_api, is_beside=is_beside)
        waiting = partial(StartWaiting, "api", settings.api, listener=listeners[0])
        opened = partial(_opened, directory, overrides, child or "api", is_child=child is not None)
        _serve(_build_patiently(stack, opened, waiting, build), (), announced, listeners)


@contextmanager
def _opened(
    directory: Path, overrides: Mapping[str, str], process: str = "service", *, is_child: bool = False
) -> Iterator[Foundation]:
    with closing(open_foundation(directory, overrides)) as foundation:
        tell_steps(foundation.layout.starts, process, is_child=is_child)
        say_step("service", "opened the log and the store")
        yield foundation


@contextmanager
def _children(foundation: Foundation) -> Iterator[list[ChildProcess]]:
    """Run the processes beside the service from now on, while the engine loads."""
    settings = foundation.settings
    children = [
        ChildProcess(
            each.name,
            each.arguments,
            each.ready,
            {**foundation.overrides, **own_ports(settings, number)},
            settings.stages,
            serves_users=each.serves_users,
        )
        for number, each in enumerate(children_of(foundation))
    ]
    with ExitStack() as held:
        for child in children:
            held.callback(child.stop)
            if not child.name.startswith(API):  # those start once there is an engine that they can ask
                child.start()
                say_step("service", f"started the {child.name} process")
        yield children


def _build_patiently(
    stack: ExitStack,
    opened: Callable[[], AbstractContextManager[Foundation]],
    waiting: Callable[[ExitStack], StartWaiting],
    make: Callable[[Foundation], HttpService],
) -> HttpService:
    """Build the service once all that it needs is available; until then `waiting` answers with what is missing."""

    def build() -> HttpService:
        with ExitStack() as undo:
            service = make(undo.enter_context(opened()))
            stack.push(undo.pop_all())
        return service

    with ExitStack() as meanwhile:
        service = Ending().made(build, waiting(meanwhile).waits)
    assert service is not None, "nobody tells it to end"
    return service


def _serve(
    service: HttpService,
    children: Sequence[ChildProcess],
    announced: Sequence[Path],
    listeners: Sequence[socket.socket],
) -> None:
    """Serve from the first of `listeners` until told to stop, beside `children`; those that answer have the others.

    `announced` are files for those who look for this process, present while it serves: its pid, or its pid and URL
    (JSON)."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    settings, makers = service.foundation.settings, service.makers
    threads = [Runner(name, makers.get(name), settings.stages, made=stage) for name, stage in service.stages.items()]
    parts: list[Runner | ChildProcess] = [*threads, *children]

    def readiness() -> dict[str, str]:
        states = {part.name: part.state for part in parts}
        for name, state in {"log": service.log.state, **service.serving.states()}.items():
            if states.get(name, _OK) == _OK:
                states[name] = state
        if service.live_state.state != _OK:
            states["live_state"] = f"degraded: {service.live_state.state}"
        return states

    app = build_app(service, readiness)
    say_step("service", "built the API")
    service.serving.bring_up()
    say_step("service", "put the live version in place")
    for thread in threads:
        thread.start()
    looking = StageAlarms(parts, service.foundation.store, service.foundation.clock, settings.stages.well_s)
    try:
        with watched(looking):
            apis = [child for child in children if child.name.startswith(API)]
            _serve_http(service, app, announced, apis, listeners)
    finally:
        _stop(children, threads)
        service.serving.close()
        service.log.close()


def _stop(children: Sequence[ChildProcess], threads: Sequence[Runner]) -> None:
    """Stop all at once: each may have something to finish."""
    for child in children:
        child.terminate()
    for thread in threads:
        thread.tell_to_end()
    for child in children:
        child.stop()
    for thread in threads:
        thread.stop()


def _serve_http(
    service: HttpService,
    app: object,
    announced: Sequence[Path],
    apis: Sequence[ChildProcess],
    listeners: Sequence[socket.socket],
) -> None:
    """Serve; `apis` are the processes that do so beside this one."""
    layout, settings = service.foundation.layout, service.foundation.settings.api
    server = HttpServer(app, bounds_of_each(settings, service.foundation.settings.processes.api), listeners[0])
    looking: list[asyncio.Task[None]] = []

    def tell() -> None:
        urls = [server.url, *(address_of(layout, each.pid) for each in apis)]
        for path in announced:
            announce(path, urls, settings.tls.certificate)
        say_serving(urls, layout.root)

    async def tell_when_all_serve() -> None:
        while not all(each.state == _OK for each in apis):  # noqa: ASYNC110 - they are other processes
            await asyncio.sleep(_LOOK_EVERY_S)
        tell()

    def started() -> None:
        say_step("service", "listens")
        if apis:
            looking.append(asyncio.get_running_loop().create_task(tell_when_all_serve()))
        else:
            tell()

    try:
        server.run(started, _within(service, apis, looking, listeners[1:]))
    finally:
        for path in announced:
            path.unlink(missing_ok=True)
        server.close()


@asynccontextmanager
async def _within(
    service: HttpService,
    apis: Sequence[ChildProcess],
    tasks: Sequence[asyncio.Task[None]],
    listeners: Sequence[socket.socket],
) -> AsyncIterator[None]:
    """Answer the processes beside this one, until they have finished what they ask for.

    `listeners` hold their addresses until they are started."""
    line = service.foundation.layout.line
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.serving.aclose)
        if service.line is not None:
            stack.push_async_callback(service.line.aclose)
        if service.listener is not None:
            if line.parent != service.foundation.layout.root:
                own_folder(line.parent)
            await stack.enter_async_context(service.listener.listening(line))
            stack.push_async_callback(asyncio.to_thread, _stop, apis, ())
            let_go(listeners)
            for each in apis:
                each.start()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
