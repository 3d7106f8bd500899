"""One connection of the line, as both of its sides have it: frames of messages, their length before them.

What one turn of the event loop sends leaves as one frame: of a decode step the tokens of all requests."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Literal, cast

import msgspec

_LENGTH: Final = 4  # bytes, little-endian
LARGEST_FRAME: Final = 1 << 30
logger = logging.getLogger(__name__)

Kind = Literal["ask", "stream", "cancel", "tell", "item", "last", "fault"]


class WireMessage(msgspec.Struct, array_like=True, frozen=True):
    kind: Kind
    number: int
    """Of the question to which it belongs; 0 where it belongs to none."""
    topic: str
    body: msgspec.Raw


_NOTHING: Final = msgspec.msgpack.encode(None)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[WireMessage]).decode


class Frames:
    """Takes bytes as they come, and gives the messages of whole frames. Raises ValueError for what is no frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def take(self, data: bytes) -> list[WireMessage]:
        self._buffer += data
        found: list[WireMessage] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH:
            begin = at + _LENGTH
            end = begin + int.from_bytes(self._buffer[at:begin], "little")
            if end - begin > LARGEST_FRAME:
                raise ValueError(f"a frame of {end - begin} bytes")
            if len(self._buffer) < end:
                break
            found += _decode(bytes(self._buffer[begin:end]))
            at = end
        del self._buffer[:at]
        return found


class Wire(asyncio.Protocol):
    """Used from one event loop."""

    def __init__(self, got: Callable[[WireMessage], None], lost: Callable[[str], None]) -> None:
        """Call `got` with each message, and `lost` once with the reason when the connection is over."""
        self._got, self._lost = got, lost
        self._frames = Frames()
        self._unsent: list[WireMessage] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._why = "the connection ended"

    def send(self, kind: Kind, number: int = 0, topic: str = "", body: bytes = _NOTHING) -> None:
        """Send with whatever else this turn of the event loop sends; nobody hears what comes after the connection."""
        self._unsent.append(WireMessage(kind, number, topic, msgspec.Raw(body)))
        if len(self._unsent) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._transport is None:
            return  # it is sent once there is a connection
        unsent, self._unsent = self._unsent, []
        if unsent and not self._transport.is_closing():
            frame = _encode(unsent)
            self._transport.write(len(frame).to_bytes(_LENGTH, "little") + frame)

    async def has_room(self) -> None:
        """Wait while the other side takes nothing."""
        await self._room.wait()

    def close(self, why: str) -> None:
        self._why = why
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.take(data):
                self._got(message)
        except ValueError as error:  # msgspec's are such, too
            logger.error("a connection between processes of this service is given up: %s", error)
            self._why = f"it said what could not be read: {error}"
            assert self._transport is not None
            self._transport.abort()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        self._lost(self._why if exc is None else str(exc))
