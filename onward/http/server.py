"""The API's HTTP server: uvicorn on uvloop, with bounds on connections, and TLS where it is asked for."""

import asyncio
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import uvicorn
import uvloop

from api.http.connections import bounded_protocol
from core.network.addresses import in_url
from core.settings import ApiSettings, ConnectionSettings
from onward.http.tls import server_context

_GC_THRESHOLDS = (50_000, 20, 1000)  # measured: p99 of a request 19 to 7 ms
_START_POLL_S = 0.01
_OTHER_FILES = 512  # that a process opens beside its connections
logger = logging.getLogger(__name__)


class HttpServer:
    """One address that an application is served at."""

    def __init__(self, app: object, settings: ApiSettings, listener: socket.socket) -> None:
        """Prepare to accept from `listener`, which is the server's from here on."""
        tls = server_context(settings.tls)
        self._settings = settings.model_copy(update={"connections": _within_files(settings.connections)})
        self._listener = listener
        self.url = f"{'https' if tls else 'http'}://{in_url(settings.host)}:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]  # uvicorn's ASGI type is narrower than FastAPI's
            http=bounded_protocol(self._settings.connections),
            ws="none",
            access_log=False,
            log_config=None,  # as all of this process: without secrets, and without what errors of others say
            log_level="warning",
            timeout_keep_alive=int(settings.connections.idle_s) + 1,  # our own bound comes first
            timeout_graceful_shutdown=10,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        self._server = _Server(config)

    def run(self, started: Callable[[], None], within: AbstractAsyncContextManager[None]) -> None:
        """Serve within a context until a signal stops it. `started` is called once it answers."""

        async def main() -> None:
            gc.collect()
            gc.freeze()
            gc.set_threshold(*_GC_THRESHOLDS)
            async with within:
                serving = asyncio.ensure_future(self._server.serve(sockets=[self._listener]))
                while not self._server.started and not serving.done():  # uvicorn sets a flag and wakes nobody
                    await asyncio.wait([serving], timeout=_START_POLL_S)
                started()
                await serving

        try:
            with asyncio.Runner(loop_factory=lambda: _Loop(self._settings.connections.header_s)) as runner:
                runner.run(main())
        except KeyboardInterrupt:
            logger.info("stopped")

    def close(self) -> None:
        self._listener.close()


class _Loop(uvloop.Loop):
    """uvloop, whose servers give up on a TLS handshake as on headers."""

    def __init__(self, handshake_s: float) -> None:
        super().__init__()
        self._handshake_s = handshake_s

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = self._handshake_s
        return await super().create_server(*arguments, **options)


class _Server(uvicorn.Server):
    """A server of uvicorn that returns when a signal has stopped it.

    uvicorn's own raises the signal again, which ends the process before its stages are stopped."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _within_files(settings: ConnectionSettings) -> ConnectionSettings:
    """Each connection is an open file: where the system allows fewer, there are fewer connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.total + _OTHER_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return settings
    total = max(1, soft - _OTHER_FILES)
    logger.warning("api.connections.total: %d instead of %d: the system allows %d open files", total, wanted, soft)
    return settings.model_copy(update={"total": total})
