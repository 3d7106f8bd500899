"""`onward run`: the whole product in one process tree, on one directory, until stopped."""

import asyncio
import fcntl
import gc
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from core.errors import ConfigError
from onward.layout import Layout
from onward.supervisor import ChildProcess, StageThread
from onward.wiring import Foundation, Service, build_app, build_service, open_foundation

_GC_THRESHOLDS = (50_000, 20, 1000)  # measured: p99 of a request 19 to 7 ms
_SWITCH_INTERVAL_S = 0.001  # the engine's thread and the event loop share the interpreter
_BACKLOG = 1024
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections: else one closes as the other writes
_START_POLL_S = 0.01
_OK = "ok"
logger = logging.getLogger(__name__)


def run_service(directory: Path, overrides: Mapping[str, str]) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigError when the directory is in use or a setting is wrong."""
    layout = Layout(directory.resolve())
    layout.ensure()
    with _exclusive(layout):
        foundation = open_foundation(directory, overrides)
        try:
            _serve(foundation)
        finally:
            foundation.close()


def _serve(foundation: Foundation) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    service = build_service(foundation)
    threads = [StageThread(name, stage) for name, stage in service.stages.items()]
    children = [ChildProcess(each.name, each.arguments, each.ready, foundation.overrides) for each in service.children]
    parts: list[StageThread | ChildProcess] = [*threads, *children]

    def readiness() -> dict[str, str]:
        states = {part.name: part.state for part in parts}
        for name, state in {"log": service.log.state, **service.serving.states()}.items():
            if states.get(name, _OK) == _OK:
                states[name] = state
        return states

    app = build_app(service, readiness)
    service.serving.bring_up()
    for part in parts:
        part.start()
    try:
        _serve_http(service, app)
    finally:
        _stop(children, threads)
        service.serving.close()
        service.log.close()


def _stop(children: Sequence[ChildProcess], threads: Sequence[StageThread]) -> None:
    """All children at once: each may have something to finish."""
    for child in children:
        child.terminate()
    for child in children:
        child.stop()
    for thread in threads:
        thread.stop()


def _serve_http(service: Service, app: object) -> None:
    foundation = service.foundation
    settings = foundation.settings.api
    listener = socket.create_server((settings.host, settings.port), backlog=_BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvloop leaves sockets it is handed without it
    url = f"http://{settings.host}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # uvicorn's ASGI type is narrower than FastAPI's
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=10,
    )
    server = uvicorn.Server(config)

    async def main() -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started and not serving.done():  # uvicorn sets a flag and wakes nobody
            await asyncio.wait([serving], timeout=_START_POLL_S)
        foundation.layout.address.write_text(json.dumps({"pid": os.getpid(), "url": url}))
        print(f"onward serves at {url}  (directory {foundation.layout.root})", flush=True)
        await serving
        await service.serving.aclose()

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        logger.info("stopped")
    finally:
        foundation.layout.address.unlink(missing_ok=True)
        listener.close()


@contextmanager
def _exclusive(layout: Layout) -> Iterator[None]:
    """One service per directory; the lock dies with its process."""
    with layout.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"{layout.root}: another service runs on this directory") from error
        yield
