"""Another process's end of the line: it asks the first one."""

import asyncio
import itertools
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from core.beside.faults import unpacked
from core.beside.wire import Frames, Wire, WireMessage
from core.errors import EngineUnavailable

OK: Final = "ok"
_AGAIN_S: Final = 0.1
_GREETING_S: Final = 10.0
_AT_ONCE: Final = 1 << 16  # bytes
logger = logging.getLogger(__name__)


class Lost(EngineUnavailable):
    """The first process is gone, or does not answer."""


class Line:
    """Asks and streams upon one connection, which comes back by itself. Used from one event loop, once it is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state = "the service's first process is not connected yet"
        self.lost_s = float("-inf")  # when, on time.monotonic
        self._wire: Wire | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, _Answer] = {}
        self._hears: dict[str, Callable[[msgspec.Raw], None]] = {}
        self._connected: list[Callable[[], None]] = []
        self._over = asyncio.Event()
        self._opening = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._is_closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def hear(self, topic: str, call: Callable[[msgspec.Raw], None]) -> None:
        """Pass what the first process tells of a topic to `call`."""
        self._hears[topic] = call

    def when_connected(self, call: Callable[[], None]) -> None:
        """Call `call` at each connection, before anything else is sent upon it."""
        self._connected.append(call)

    async def open(self) -> None:
        """Connect, unless it was opened before. Where nobody listens it goes on trying.

        Of several that open it at once the first connects, and the others wait for that."""
        if self._keeping is not None:
            return
        async with self._opening:
            if self._keeping is None:
                self._loop = asyncio.get_running_loop()
                await self._connect()
                self._keeping = asyncio.create_task(self._keep())

    async def aclose(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping])
        if self._wire is not None:
            self._is_closing = True
            self._wire.close("this process ends")
            await self._over.wait()

    async def ask(self, topic: str, body: bytes, timeout_s: float) -> msgspec.Raw:
        """Return the answer. Raises Lost, after `timeout_s` at the latest, and what the answering raised there."""
        wire = self._there()
        number, answer = self._begin(wire, "ask", topic, body)
        try:
            async with asyncio.timeout(timeout_s):
                return (await answer.next()).body
        except TimeoutError:
            raise Lost(f"the service's first process has not answered within {timeout_s:g} s") from None
        finally:
            self._answers.pop(number, None)

    def ask_from_thread(self, topic: str, body: bytes, timeout_s: float) -> msgspec.Raw:
        """Ask as `ask` does, from a thread that is not the event loop's. Blocks."""
        loop = self._loop
        if loop is None or loop.is_closed():
            raise Lost(self.state)
        asking = asyncio.run_coroutine_threadsafe(self.ask(topic, body, timeout_s), loop)
        try:
            return asking.result(timeout_s + _AGAIN_S)
        except TimeoutError:  # the loop has ended meanwhile
            raise Lost(self.state) from None

    async def stream(self, topic: str, body: bytes) -> AsyncGenerator[msgspec.Raw, None]:
        """Yield the parts of an answer; closing this ends the work there. Raises as `ask` does, but waits for long."""
        wire = self._there()
        number, answer = self._begin(wire, "stream", topic, body)
        is_over = False
        try:
            await wire.has_room()
            while not is_over:
                message = await answer.next()
                is_over = message.kind == "last"
                yield message.body
        finally:
            del self._answers[number]
            if not is_over:
                wire.send("cancel", number)

    def tell(self, topic: str, body: bytes) -> bool:
        """Tell the first process, without waiting; return False where it is away."""
        if self._wire is None:
            return False
        self._wire.send("tell", 0, topic, body)
        return True

    # ------------------------------------------------------------------------------------------ the connection

    def _there(self) -> Wire:
        if self._wire is None:
            raise Lost(self.state)
        return self._wire

    def _begin(self, wire: Wire, kind: Literal["ask", "stream"], topic: str, body: bytes) -> tuple[int, "_Answer"]:
        number = next(self._numbers)
        answer = self._answers[number] = _Answer()
        wire.send(kind, number, topic, body)
        return number, answer

    async def _keep(self) -> None:
        while True:
            await self._over.wait()
            await asyncio.sleep(_AGAIN_S)
            await self._connect()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._over.clear()
        try:
            _, wire = await loop.create_unix_connection(lambda: Wire(self._got, self._lost), str(self._path))
        except OSError as error:
            self._lost(str(error.strerror or error))
            return
        self._wire, self.state = wire, OK
        for call in self._connected:
            call()

    def _lost(self, why: str) -> None:
        if self._wire is not None and not self._is_closing:
            self.lost_s = time.monotonic()
            logger.warning("the service's first process is away: %s", why)
        self._wire, self.state = None, f"the service's first process is away: {why}"
        for answer in self._answers.values():
            answer.put(Lost(self.state))
        self._over.set()

    def _got(self, message: WireMessage) -> None:
        match message.kind:
            case "tell":
                self._hears[message.topic](message.body)
            case "item" | "last":
                if message.number in self._answers:  # else nobody waits for it any more
                    self._answers[message.number].put(message)
            case "fault":
                if message.number in self._answers:
                    self._answers[message.number].put(unpacked(message.body))
            case _:
                raise ValueError(f"the first process answers and does not say {message.kind!r}")


class _Answer:
    """What has come of one answer."""

    def __init__(self) -> None:
        self._come: deque[WireMessage | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: WireMessage | Exception) -> None:
        self._come.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> WireMessage:
        while not self._come:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._come.popleft()
        if isinstance(item, Exception):
            raise item
        return item


def greeting(path: Path, topic: str) -> bytes:
    """Connect for a moment, and return what the first process shows of a topic. Blocks. Raises EngineUnavailable."""
    frames = Frames()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
            there.settimeout(_GREETING_S)
            there.connect(str(path))
            while data := there.recv(_AT_ONCE):
                for message in frames.take(data):
                    if message.topic == topic:
                        return bytes(message.body)
    except OSError as error:
        raise EngineUnavailable(
            f"the service's first process does not answer yet: {error.strerror or error}"
        ) from error
    raise EngineUnavailable("the service's first process hung up")
