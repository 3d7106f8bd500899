"""One connection to Redis that all requests share, and for which none waits while Redis is unreachable.

Commands that are sent while others are on their way leave together: under load one costs a quarter of what it costs
through a pool, and a server that hangs holds one connection, not hundreds."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from core.errors import ConfigError
from core.settings import RedisSettings
from core.telemetry import LIVE_STATE_FALLBACKS

OK = "ok"
_PROBE = "return redis.call('SET', KEYS[1], '', 'EX', 60)"
FAULTS = (RedisError, OSError, TimeoutError)
Command = Sequence[str | bytes | int | float]
logger = logging.getLogger(__name__)


class RedisUnavailable(Exception):
    """Redis does not answer, or refuses the command."""


class RedisLink:
    """The shared connection, used from one event loop. Only `beat` connects: call it now and then."""

    def __init__(self, settings: RedisSettings) -> None:
        """Prepare the link without connecting. Raises ConfigError."""
        self.state = "not connected"
        self.pool = connections(settings)
        self._timeout_s = settings.timeout_s
        self._probe = "EVAL", _PROBE, 1, f"{settings.prefix}probe"
        self._line: _Line | None = None
        self._connected_s = 0.0
        self._lost_s = -math.inf

    @property
    def connected_for_s(self) -> float:
        """Seconds since the connection was made."""
        return time.monotonic() - self._connected_s

    @property
    def lost_for_s(self) -> float:
        """Seconds since a connection was lost."""
        return time.monotonic() - self._lost_s

    async def ask(self, operation: str, *command: str | bytes | int | float) -> Any:
        """Send a command and return its reply.

        Raises RedisUnavailable: at once while Redis is known to be unreachable, else after `timeout_s` at the
        latest."""
        line = self._line
        if line is None:
            raise self._unavailable(operation, "away")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await line.send(command)
        except ResponseError as error:  # only this command is refused; if all are, the next beat fails, too
            logger.warning("redis refused %s: %s", operation, error)
            raise self._unavailable(operation, "refused") from error
        except FAULTS as error:
            self._lose(line, error)
            raise self._unavailable(operation, "failed") from error

    async def beat(self, *commands: Command) -> None:
        """Connect if there is no connection, send `commands`, and set the state to whether Redis does what we ask.

        Raises RedisUnavailable."""
        line = self._line
        try:
            async with asyncio.timeout(self._timeout_s):
                if line is None:
                    connection = make_connection(self.pool)
                    await connection.connect()  # type: ignore[no-untyped-call]
                    line = self._line = _Line(connection)
                    self._connected_s = time.monotonic()
                self.send(*commands)
                await line.send(self._probe)
        except FAULTS as error:
            self._lose(line, error)
            raise RedisUnavailable("beat") from error
        if self.state != OK:
            logger.info("redis answers")
            self.state = OK

    def send(self, *commands: Command) -> None:
        """Send commands without waiting for the replies; without a connection they are dropped."""
        if self._line is not None:
            with suppress(ConnectionError):
                for command in commands:
                    self._line.send(command).add_done_callback(_forget)

    async def close(self) -> None:
        line, self._line = self._line, None
        self.state = "closed"
        if line is not None:
            await line.close()

    def _lose(self, line: "_Line | None", error: Exception) -> None:
        """Drop the connection, so that nobody else waits on it any longer."""
        if line is not self._line:
            return  # another request has found this out before
        self._line = None
        if self.state == OK:
            self._lost_s = time.monotonic()
            logger.warning("redis is unreachable: %s", self._described(error))
        self.state = self._described(error)
        if line is not None:
            line.drop(error)

    def _described(self, error: Exception) -> str:
        return f"no answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)

    def _unavailable(self, operation: str, reason: str) -> RedisUnavailable:
        LIVE_STATE_FALLBACKS.labels(operation, reason).inc()
        return RedisUnavailable(operation)


class _Pending(NamedTuple):
    command: Command
    reply: asyncio.Future[Any]


class _Line:
    """One connection for as long as it lives. Replies arrive in the order of the commands."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._waiting: deque[_Pending] = deque()
        self._new = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._work())

    def send(self, command: Command) -> asyncio.Future[Any]:
        """Send a command and return the future of its reply. Raises ConnectionError.

        The command is sent even if the future is cancelled."""
        if self._task.done():
            raise ConnectionError("the connection was lost")
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append(_Pending(command, reply))
        self._new.set()
        return reply

    def drop(self, error: Exception) -> None:
        self._task.cancel()
        self._fail_waiting(error)

    async def close(self) -> None:
        self.drop(ConnectionError("closed"))
        await asyncio.wait([self._task])

    async def _work(self) -> None:
        try:
            while True:
                await self._new.wait()
                self._new.clear()
                batch = list(self._waiting)
                packed = self._connection.pack_commands([pending.command for pending in batch])
                await self._connection.send_packed_command(packed, check_health=False)
                for pending in batch:
                    await self._receive(pending.reply)
        except FAULTS as error:
            self._fail_waiting(error)
        finally:
            await self._connection.disconnect(nowait=True)

    def _fail_waiting(self, error: Exception) -> None:
        for pending in self._waiting:
            if not pending.reply.done():
                pending.reply.set_exception(error)
        self._waiting.clear()

    async def _receive(self, reply: asyncio.Future[Any]) -> None:
        try:
            found = await self._connection.read_response()
        except ResponseError as error:
            if not reply.done():
                reply.set_exception(error)
        else:
            if not reply.done():
                reply.set_result(found)
        self._waiting.popleft()


def connections(settings: RedisSettings) -> ConnectionPool:
    """Return a pool to make connections with. Raises ConfigError.

    Nothing is retried, since no request waits twice."""
    options: dict[str, Any] = {"protocol": 2, "retry": Retry(NoBackoff(), 0), "socket_timeout": None}
    if not settings.url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        pool = ConnectionPool.from_url(settings.url, **options)
        make_connection(pool)  # which raises for an option of the URL that it does not know
    except (ValueError, TypeError, RedisError) as error:
        raise ConfigError(f"settings: redis.url: {error}") from error
    return pool


def make_connection(pool: ConnectionPool) -> AbstractConnection:
    return cast("AbstractConnection", pool.make_connection())  # type: ignore[no-untyped-call]


def _forget(reply: asyncio.Future[Any]) -> None:
    if not reply.cancelled():
        reply.exception()
