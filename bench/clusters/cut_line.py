"""A line to a server that can be cut: connections are passed on in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_PIECE_BYTES = 1 << 16
_TIMEOUT_S = 10


class Line:
    """A port of this machine that leads to another one. While the line is cut, every connection ends at once."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self.is_cut = False
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._pass_on, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(_TIMEOUT_S)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        with suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers |= {writer, up_writer}
            if self.is_cut:  # meanwhile
                self._abort()
            await asyncio.gather(self._copy(reader, up_writer), self._copy(up_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)

    def cut(self) -> None:
        self.is_cut = True
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.is_cut = True
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        self._abort()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
