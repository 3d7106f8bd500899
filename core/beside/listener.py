"""The first process's end of the line: it answers the other processes, and tells them what changes."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from core.beside.faults import packed
from core.beside.wire import Wire, WireMessage
from core.errors import OnwardError

Answer = Callable[[msgspec.Raw], Awaitable[bytes]]
Answers = Callable[[msgspec.Raw], AsyncGenerator[tuple[bytes, bool], None]]
_LOOK_S: Final = 0.1  # how often it is looked whether something to be told has changed
_MODE: Final = 0o600
logger = logging.getLogger(__name__)


class Listener:
    """Say what is answered, then listen. Used from one event loop, but for `tell_soon`."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._streams: dict[str, Answers] = {}
        self._takes: dict[str, Callable[[msgspec.Raw], None]] = {}
        self._shown: dict[str, Callable[[], bytes]] = {}
        self._peers: set[_Peer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def answer(self, topic: str, answer: Answer) -> None:
        self._answers[topic] = answer

    def stream(self, topic: str, answers: Answers) -> None:
        """`answers` yields each part and whether it is the last. It is closed when the other side wants no more."""
        self._streams[topic] = answers

    def take(self, topic: str, take: Callable[[msgspec.Raw], None]) -> None:
        """Pass what is told of a topic to `take`, in order."""
        self._takes[topic] = take

    def show(self, topic: str, show: Callable[[], bytes]) -> None:
        """Tell each process what `show` returns, when it connects and whenever that changes."""
        self._shown[topic] = show

    def tell_soon(self, topic: str, body: bytes) -> None:
        """Tell all processes, from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._tell, topic, body)

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Listen at a socket that is this user's alone. Its folder must be, too."""
        loop = asyncio.get_running_loop()
        with _bound(path) as listener:
            server = await loop.create_unix_server(self._greet, sock=listener)
            self._loop = loop
            looking = asyncio.create_task(self._look())
            try:
                yield
            finally:
                self._loop = None
                looking.cancel()
                server.close()
                await asyncio.gather(*(peer.aclose() for peer in list(self._peers)), return_exceptions=True)

    def _greet(self) -> Wire:
        peer = _Peer(self._answers, self._streams, self._takes, self._peers.discard)
        self._peers.add(peer)
        for topic, show in self._shown.items():
            peer.wire.send("tell", 0, topic, show())
        return peer.wire

    def _tell(self, topic: str, body: bytes) -> None:
        for peer in self._peers:
            peer.wire.send("tell", 0, topic, body)

    async def _look(self) -> None:
        told = {topic: show() for topic, show in self._shown.items()}
        while True:
            await asyncio.sleep(_LOOK_S)
            for topic, show in self._shown.items():
                if (now := show()) != told[topic]:
                    told[topic] = now
                    self._tell(topic, now)


@contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    path.unlink(missing_ok=True)  # of a service that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        path.chmod(_MODE)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


class _Peer:
    """One other process. What it asked is dropped when it goes."""

    def __init__(
        self,
        answers: dict[str, Answer],
        streams: dict[str, Answers],
        takes: dict[str, Callable[[msgspec.Raw], None]],
        gone: Callable[["_Peer"], None],
    ) -> None:
        self._answers, self._streams, self._takes, self._gone = answers, streams, takes, gone
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.wire = Wire(self._got, self._lost)

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what they leave behind is sent
        self.wire.close("the service ends")

    def _got(self, message: WireMessage) -> None:
        match message.kind:
            case "ask":
                self._begin(message, self._answer(message))
            case "stream":
                self._begin(message, self._stream(message))
            case "cancel":
                if message.number in self._tasks:
                    self._tasks[message.number].cancel()
            case "tell":
                self._takes[message.topic](message.body)
            case _:
                raise ValueError(f"a process asks and does not say {message.kind!r}")

    def _begin(self, message: WireMessage, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[message.number] = asyncio.create_task(work)
        task.add_done_callback(partial(self._ended, message))

    async def _answer(self, message: WireMessage) -> None:
        body = await self._answers[message.topic](message.body)
        self.wire.send("last", message.number, "", body)

    async def _stream(self, message: WireMessage) -> None:
        async with aclosing(self._streams[message.topic](message.body)) as parts:
            is_last = False
            async for part, is_last in parts:
                self.wire.send("last" if is_last else "item", message.number, "", part)
                await self.wire.has_room()
        if not is_last:  # else who asked would wait for ever
            raise ValueError(f"{message.topic}: the answer ended before its last part")

    def _ended(self, message: WireMessage, task: asyncio.Task[None]) -> None:
        del self._tasks[message.number]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, OnwardError):
                logger.error(
                    "%s, which another process of this service asked for, failed", message.topic, exc_info=error
                )
            self.wire.send("fault", message.number, "", packed(error))

    def _lost(self, _why: str) -> None:
        self._gone(self)
        for task in self._tasks.values():
            task.cancel()
