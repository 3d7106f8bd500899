"""Request bodies on their way in. Small ones are read as they come; of large ones, only so many bytes at once."""

from collections.abc import Mapping

from api.asgi import ClientGone, Headers, Receive
from core.errors import TooLarge, Unavailable
from core.settings import ApiSettings
from core.telemetry import BODY_BYTES, REFUSED_BODIES

_MOST_DIGITS = 19  # of a length that anybody has
_RETRY_AFTER_S = "1"


class Busy(Unavailable):
    """As many large bodies are being read as may be."""

    headers: Mapping[str, str] = {"retry-after": _RETRY_AFTER_S}


class Body:
    """`release` it when it has been read: nothing of `raw` is needed any more."""

    __slots__ = ("_bodies", "_held", "raw")

    def __init__(self, bodies: "Bodies") -> None:
        self.raw = b""
        self._bodies = bodies
        self._held = 0

    @property
    def is_held(self) -> bool:
        """Whether its bytes count."""
        return self._held > 0

    def hold(self, size: int) -> None:
        """Raises Busy."""
        self._bodies.take(size)
        self._held = size

    def release(self) -> None:
        self.raw = b""
        if self._held:
            held, self._held = self._held, 0
            self._bodies.give(held)


class Bodies:
    """Those of one application."""

    def __init__(self, settings: ApiSettings) -> None:
        self._limit = settings.max_body_bytes
        self._large = settings.bodies.large_bytes
        self._in_flight = settings.bodies.in_flight_bytes
        self.held = 0

    def is_large(self, size: int) -> bool:
        return size > self._large

    async def read(self, headers: Headers, receive: Receive) -> Body:
        """The whole body. Raises TooLarge past the limit, without reading on; Busy, ClientGone."""
        body = Body(self)
        try:
            declared = self._declared(headers)
            if declared is not None and declared > self._large:
                body.hold(declared)
            body.raw = await self._read(receive, body)
        except BaseException:
            body.release()
            raise
        return body

    def _declared(self, headers: Headers) -> int | None:
        text = headers.get(b"content-length", b"")
        if not text.isdigit():
            return None
        if len(text) > _MOST_DIGITS or int(text) > self._limit:
            raise self._too_large()
        return int(text)

    async def _read(self, receive: Receive, body: Body) -> bytes:
        message = await receive()
        raw: bytes = message.get("body", b"")
        if message.get("more_body", False):
            parts, size = [raw], len(raw)
            while message.get("more_body", False):
                message = await receive()
                part: bytes = message.get("body", b"")
                parts.append(part)
                size += len(part)
                if size > self._limit:
                    raise self._too_large()
                if size > self._large and not body.is_held:
                    body.hold(self._limit)  # its length was not said: all that it may be
            raw = b"".join(parts)
        if message["type"] == "http.disconnect":
            raise ClientGone
        if len(raw) > self._limit:
            raise self._too_large()
        return raw

    def _too_large(self) -> TooLarge:
        REFUSED_BODIES.labels("size").inc()
        return TooLarge(f"the body is larger than {self._limit} bytes", code="body_too_large")

    def take(self, size: int) -> None:
        """Raises Busy."""
        if self.held + size > self._in_flight:
            REFUSED_BODIES.labels("busy").inc()
            raise Busy("too many large bodies are being read; try again in a moment")
        self.held += size
        BODY_BYTES.set(self.held)

    def give(self, size: int) -> None:
        self.held -= size
        BODY_BYTES.set(self.held)
