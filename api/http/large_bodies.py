"""Request bodies on their way in. Small ones are read as they arrive; large ones share a limit on bytes in memory."""

import asyncio
import mmap
from contextlib import suppress

from api.http.asgi import ClientGone, Headers, Receive
from api.http.body_shape import Raw
from api.http.compressed import Inflater, inflater_of
from core.errors import Overloaded, TooLarge
from core.settings import BodySettings
from core.telemetry import BODY_BYTES, REFUSED_BODIES

_MOST_DIGITS = 19  # of a content-length that is read as a number


class Body:
    """A request body. After `release`, which its reader must call, `raw` is gone for everybody.

    A large one lies in memory of its own, which goes back to the system with it: from the heap, where it would be
    between objects that live longer, it would not."""

    __slots__ = ("_bodies", "_held", "_space", "raw")

    def __init__(self, bodies: "Bodies") -> None:
        self.raw: Raw = b""
        self._bodies = bodies
        self._held = 0
        self._space: mmap.mmap | None = None

    @property
    def is_held(self) -> bool:
        """True for a large body, whose bytes count against the limit."""
        return self._space is not None

    def hold(self, most: int) -> None:
        """Reserve space for a large body of at most so many bytes. They take memory only once they have arrived."""
        self._space = mmap.mmap(-1, most)

    def add(self, part: bytes) -> None:
        """Add a part to a large body. Raises Overloaded."""
        assert self._space is not None
        self._bodies.take(len(part))
        self._held += self._space.write(part)

    def close(self) -> None:
        """Make `raw` of a large body that is whole."""
        assert self._space is not None
        self.raw = memoryview(self._space)[: self._held]

    def release(self) -> None:
        raw, space = self.raw, self._space
        self.raw, self._space = b"", None
        if space is not None:
            with suppress(BufferError):  # cut off while it is written: then it is freed with the last reference
                if isinstance(raw, memoryview):
                    raw.release()
                space.close()
        if self._held:
            held, self._held = self._held, 0
            self._bodies.give(held)


class Bodies:
    """The request bodies of one application."""

    def __init__(self, settings: BodySettings) -> None:
        self._limit = settings.max_bytes
        self._large = settings.large_bytes
        self._in_flight = settings.in_flight_bytes
        self.held = 0

    def is_large(self, size: int) -> bool:
        return size > self._large

    async def read(self, headers: Headers, receive: Receive, *, as_sent: bool = False) -> Body:
        """Read the whole body; a compressed one is made plain, unless it is wanted `as_sent`.

        Raises TooLarge past the limit, without reading on; Overloaded, ClientGone, InvalidRequest and
        UnsupportedMediaType for compression that is none, or is not taken."""
        inflater = None if as_sent else inflater_of(headers)
        body, is_whole = Body(self), False
        try:
            declared = self._declared(headers)
            if declared is not None and declared > self._large:
                self._require_room(declared)
            most = self._limit if declared is None or inflater is not None else declared
            await self._read(receive, body, most, inflater)
            is_whole = True
        finally:
            if not is_whole:
                body.release()
        return body

    def _declared(self, headers: Headers) -> int | None:
        text = headers.get(b"content-length", b"")
        if not text.isdigit():
            return None
        if len(text) > _MOST_DIGITS or int(text) > self._limit:
            raise self._too_large()
        return int(text)

    async def _read(self, receive: Receive, body: Body, most: int, inflater: Inflater | None) -> None:
        small, size, sent, more = b"", 0, 0, True
        while more:
            message = await receive()
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            sent += len(part)
            if sent > self._limit:  # what is compressed may make nothing
                raise self._too_large()
            for piece in (part,) if inflater is None else inflater.pieces(part):
                size += len(piece)
                if size > self._limit:
                    raise self._too_large()
                if size > self._large and not body.is_held:
                    body.hold(most)
                    body.add(small)
                if body.is_held:
                    body.add(piece)
                else:
                    small += piece
                if inflater is not None:
                    await asyncio.sleep(0)  # a part may make a thousand times as much: others have their turn
        if message["type"] == "http.disconnect":
            raise ClientGone
        if inflater is not None:
            inflater.close()
        if body.is_held:
            body.close()
        else:
            body.raw = small

    def _too_large(self) -> TooLarge:
        REFUSED_BODIES.labels("size").inc()
        return TooLarge(f"the body is larger than {self._limit} bytes", code="body_too_large")

    def take(self, size: int) -> None:
        """Count so many more bytes that have arrived. Raises Overloaded."""
        self._require_room(size)
        self.held += size
        BODY_BYTES.set(self.held)

    def _require_room(self, size: int) -> None:
        """Raise Overloaded if so many more bytes do not fit; a length that is only declared takes no room."""
        if self.held + size > self._in_flight:
            REFUSED_BODIES.labels("busy").inc()
            raise Overloaded("too many large bodies are being read; try again in a moment")

    def give(self, size: int) -> None:
        self.held -= size
        BODY_BYTES.set(self.held)
