"""Connections within bounds: how many there are, and how long a client may take over headers, body and reading.

A client that sends or reads slowly costs a connection and nothing else, so what bounds it is a look at all
connections now and then: a timer for each request would cost more than all of this."""

import asyncio
import ipaddress
import sys
from collections import Counter
from collections.abc import Hashable, Iterator
from enum import Enum, auto
from typing import Any, ClassVar

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from api.http.unread import Unread, caller_of, waiting_of
from core.settings import ConnectionSettings
from core.telemetry import BROKEN_CONNECTIONS, CONNECTIONS

_LOOKS_PER_DEADLINE = 8  # deadlines are exact to this part of the shortest
_MOST_PAUSE_S = 1.0
_BESIDE = 4  # bytes of a header beside its name and its value
_MOST_HEADERS = 256
_MANY_PARTS = 65_536  # of a body; that of a client which sends each word of its JSON as it comes has fewer
_LEAST_PART = 16  # bytes of a part, on average, where there are many: to take one costs as much as some thousand bytes
_BESIDE_A_PART = 128  # bytes of a body that frame a part of it: its length, and what a client says of it
_MOST_WAITING = 32  # requests behind one that is being answered; browsers and libraries send none
_PART_BYTES = 64 << 10
"""Of an answer: what is handed to the transport at once, and what it may hold before the next part waits. Under TLS a
transport copies what it is handed, twice."""
_RETRY_AFTER_S = 5
_IPV6_SITE = 64
_VERSIONS = ("1.1", "1.0")
_NO_REQUEST = "this is no well-formed request of HTTP/1.1 or HTTP/1.0, which the service speaks"
_FRAMING = (b"content-length", b"transfer-encoding")


class Phase(Enum):
    """The part of a request that a connection waits for."""

    HEADERS = auto()
    BODY = auto()
    NOTHING = auto()
    """The request is whole: it is being answered, or the connection waits for another."""


class Connections:
    """All connections of one server."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self._watched: set[BoundedProtocol] = set()
        self._by_address: Counter[str] = Counter()
        self.unread = Unread(settings.unread_bytes)
        self._timer: asyncio.TimerHandle | None = None
        shortest = min(settings.header_s, settings.body_s, settings.idle_s, settings.write_s)
        self._pause_s = min(shortest / _LOOKS_PER_DEADLINE, _MOST_PAUSE_S)

    def enter(self, connection: "BoundedProtocol", address: str | None) -> str | None:
        """Watch the connection until it leaves, and return why it is refused, or None when it may stay."""
        self._watched.add(connection)
        CONNECTIONS.set(len(self._watched))
        if self._timer is None:
            self._timer = connection.loop.call_later(self._pause_s, self._look, connection.loop)
        if address is not None:
            self._by_address[address] += 1
            if self._by_address[address] > self.settings.per_address:
                return "address"
        return "total" if len(self._watched) > self.settings.total else None

    def leave(self, connection: "BoundedProtocol", address: str | None) -> None:
        self._watched.discard(connection)
        self.unread.forget(connection)
        CONNECTIONS.set(len(self._watched))
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def site(self, host: str) -> str | None:
        """Return the address or network that this peer's connections count for; None if it may have any number."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:  # not an Internet address
            return None
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self.settings.trusted if network.version == address.version):
            return None
        if address.version == 4:
            return str(address)
        return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._watched):
            connection.look(now)
        self.unread.show(now)
        self._timer = loop.call_later(self._pause_s, self._look, loop) if self._watched else None


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    guard: ClassVar[Connections]
    _is_gone = True  # until there is a transport, and once what it holds is let go

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._phase, self._since = Phase.HEADERS, self.loop.time()
        self._header_bytes = self._parts = self._part_bytes = self._trailers = self._beside = 0
        self.unread_since: float | None = None
        self._unread = self._sending = 0
        transport.set_write_buffer_limits(high=_PART_BYTES)
        self._is_begun_anew = False
        self._answered: RequestResponseCycle | None = None
        self._site = self.guard.site(self.client[0]) if self.client else None
        refused = self.guard.enter(self, self._site)
        self._is_ending, self._is_gone = refused is not None, False
        if refused is not None:
            what = "of your address" if refused == "address" else "at once"
            self._end(503, refused, "too_many_connections", f"too many connections {what}; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_gone = True
        self.guard.leave(self, self._site)
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:  # uvicorn tells the newest alone
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        if self._phase is Phase.NOTHING and self._is_idle():  # also for line breaks before a request
            self._enter(Phase.HEADERS)
        self._unset_keepalive_if_required()
        reading, before = (self.cycle if self._phase is Phase.BODY else None), self._part_bytes
        try:
            self._parse(data)
        except httptools.HttpParserError:
            if not self._is_ending:
                self.send_400_response(_NO_REQUEST)
        if self._phase is Phase.HEADERS:
            self._header_bytes += len(data)
            self._bound_head(self._header_bytes)
        elif self._phase is Phase.BODY and self.cycle is reading:  # all of it belongs to this body
            self._beside += len(data) - (self._part_bytes - before)
            self._bound_beside()

    def _bound_head(self, size: int) -> bool:
        """Refuse a head that is larger than it may be, and return whether it is none."""
        most = self.guard.settings.header_bytes
        if size > most and not self._is_ending:
            self._end(431, "headers", "headers_too_large", f"the headers are larger than {most} bytes")
        return size <= most

    def _bound_beside(self) -> None:
        """Refuse a body with more beside it than chunks need: the parser keeps all of a trailer until its line ends."""
        most = self.guard.settings.header_bytes
        if self._beside > most + self._parts * _BESIDE_A_PART and not self._is_ending:
            what = f"what comes beside the body, trailers or what is said of chunks, is larger than {most} bytes"
            self._end(431, "headers", "headers_too_large", what)

    def _parse(self, data: bytes) -> None:
        """Read what arrived, without a wish for another protocol, which a server may ignore (RFC 9110, 7.8).

        Behind the head of such a request the parser leaves off, and would take its body for that protocol: Java's own
        client asks for h2c. So another one reads the body, by what the head says of it."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as wish:
                data = data[wish.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._is_begun_anew = True
            self.parser.feed_data(self._framing())
            self._is_begun_anew = False

    def _framing(self) -> bytes:
        """Return a head that says of its body what the newest request's says."""
        lines = [name + b": " + value for name, value in self.headers if name in _FRAMING]
        if not self.cycle.keep_alive:
            lines.append(b"connection: close")
        return b"\r\n".join([b"POST / HTTP/1.1", *lines, b"", b""])

    def on_message_begin(self) -> None:
        """Begin a request. Many may come in one piece, and to parse each costs as much as to refuse it."""
        if self._is_begun_anew:
            return
        if len(self.pipeline) >= _MOST_WAITING:
            raise ValueError(f"more than {_MOST_WAITING} requests wait for their answers")
        super().on_message_begin()
        self._enter(Phase.HEADERS)

    def on_url(self, url: bytes) -> None:
        if not self._is_begun_anew:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. What comes behind a body, a trailer, is none (RFC 9110, 6.5.1)."""
        if self._is_begun_anew:
            return
        if self._phase is not Phase.HEADERS:
            self._trailers += 1
            if self._trailers > _MOST_HEADERS:
                raise ValueError(f"more than {_MOST_HEADERS} trailers")
            return
        if len(self.headers) >= _MOST_HEADERS:
            raise ValueError(f"more than {_MOST_HEADERS} headers")  # ends as any malformed request does
        if name.lower() == b"host" and any(known == b"host" for known, _ in self.headers):
            raise ValueError("two Host headers")  # RFC 9112, 3.2
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_begun_anew:
            return
        if not self._bound_head(
            len(self.url) + sum([len(name) + len(value) + _BESIDE for name, value in self.headers])
        ):
            raise ValueError("a large head")  # also one that came at once, with what stands before and behind it
        if self.parser.get_http_version() not in _VERSIONS:
            raise ValueError("another version")  # the parser takes HTTP/0.9 and 2.0 for ours
        is_new = self.parser.get_http_version() != "1.0"
        if is_new and all(name != b"host" for name, _ in self.headers):
            raise ValueError("no Host header")  # RFC 9112, 3.2
        self.expect_100_continue &= is_new  # RFC 9110, 10.1.1
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            _end_by_closing(self.cycle)
        self._send_in_parts(self.cycle)
        self._parts = self._part_bytes = self._trailers = self._beside = 0
        self._enter(Phase.BODY)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body: a chunk, or what arrived together."""
        if self._is_ending:
            return
        self._parts += 1
        self._part_bytes += len(body)
        if self._parts > _MANY_PARTS and self._part_bytes < self._parts * _LEAST_PART:
            what = f"the body comes in more than {_MANY_PARTS} parts of less than {_LEAST_PART} bytes"
            self._end(400, "body", "parts_too_small", f"{what} on average; send larger ones")
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():  # its body is still to come
            return
        super().on_message_complete()
        self._enter(Phase.NOTHING)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is Phase.NOTHING:
            self._since = self.loop.time()

    def resume_writing(self) -> None:
        self.unread_since = None
        super().resume_writing()
        self.guard.unread.note(self, self.loop)

    def send_400_response(self, msg: str) -> None:
        self._end(400, "malformed", "malformed_request", msg)

    def look(self, now: float) -> None:
        """End the connection when its client has taken too long."""
        settings = self.guard.settings
        self.guard.unread.note(self, self.loop)
        if self._reads_nothing(now, settings.write_s):
            self._break_off("unread")
        elif self._is_ending or self.transport.is_closing():
            return
        elif self.flow.read_paused:  # the delay is ours, not the client's
            self._since = now
        elif self._phase is Phase.HEADERS and now - self._since > settings.header_s:
            if self._header_bytes:
                self._end(
                    408, "headers", "request_timeout", f"the headers did not arrive within {settings.header_s:g} s"
                )
            else:
                self._is_ending = True
                self.transport.close()
        elif self._phase is Phase.BODY and now - self._since > settings.body_s:
            self._end(408, "body", "request_timeout", f"the body did not arrive within {settings.body_s:g} s")
        elif self._phase is Phase.NOTHING and self._is_idle() and now - self._since > settings.idle_s:
            self.transport.close()

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since, self._header_bytes = phase, self.loop.time(), 0

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _reads_nothing(self, now: float, deadline_s: float) -> bool:
        """Return whether the client has read nothing for `deadline_s`.

        This holds, too, for a closed connection with data left to send."""
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        if not self._unread or self._unread < before:
            self.unread_since = None
        if self._unread and self.unread_since is None:
            self.unread_since = now
        return self.unread_since is not None and now - self.unread_since > deadline_s

    def _end(self, status: int, why: str, code: str, message: str) -> None:
        """Send the error, where that is still possible, and close."""
        self._is_ending = True
        if not self._is_idle():
            if self.cycle.response_started:
                self._break_off(why)
                return
            self.cycle.disconnected = True  # so that nothing waits for the body any longer
            self.cycle.message_event.set()
        BROKEN_CONNECTIONS.labels(why).inc()
        error = {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error"}
        body = msgspec.json.encode({"error": {**error, "param": None, "code": code}})
        head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
        if status == 503:
            head += b"retry-after: %d\r\n" % _RETRY_AFTER_S
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()

    @property
    def held_bytes(self) -> int:
        """The bytes of answers held for the client.

        They are what the transport has, all of a body that is being sent, and what waits to be written. Under TLS what
        is encrypted already and waits for the system is not seen: three parts of an answer at most."""
        if self._is_gone:
            return 0
        waiting = 0 if self._answered is None else waiting_of(self._answered.scope)
        return self.transport.get_write_buffer_size() + self._sending + waiting

    @property
    def caller(self) -> tuple[Hashable, ...]:
        return () if self._answered is None else caller_of(self._answered.scope)

    def break_unread(self) -> None:
        """Close the connection, since too much waits for clients to be read, and this one waited longest."""
        self._break_off("unread_bytes")

    def _send_in_parts(self, cycle: RequestResponseCycle) -> None:
        """Have the answer's body handed on in parts, each once the client has taken those before it.

        The head waits for the first of the body, as ASGI asks, so that a body counts from when it is made, also behind
        an answer that nobody reads."""
        send, head = cycle.send, None

        async def sending(message: Any) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
                return
            body = message.get("body", b"")
            self._sending = len(body)
            if self._sending > _PART_BYTES or self.flow.write_paused:
                self.guard.unread.note(self, self.loop)
            try:
                if head is not None:
                    first, head = head, None
                    await send(first)
                for part in _parts(message, body):
                    await send(part)
                    if cycle.disconnected:
                        return
            finally:
                self._sending = 0
                self.guard.unread.note(self, self.loop)

        cycle.send = sending  # type: ignore[method-assign]  # uvicorn offers no other way in

    def _break_off(self, why: str) -> None:
        self._is_ending = self._is_gone = True
        BROKEN_CONNECTIONS.labels(why).inc()
        self.transport.abort()


def _parts(message: Any, body: bytes) -> Iterator[Any]:
    """Yield the message of a body as messages of a part each."""
    if len(body) <= _PART_BYTES:
        yield message
        return
    more, view = message.get("more_body", False), memoryview(body)
    for begin in range(0, len(body), _PART_BYTES):
        end = begin + _PART_BYTES
        yield {**message, "body": view[begin:end], "more_body": more or end < len(body)}


def _end_by_closing(cycle: RequestResponseCycle) -> None:
    """Have an answer without a length end with its connection: HTTP/1.0 knows no chunks (RFC 9112, 7.1)."""
    send, is_open = cycle.send, False

    async def plainly(message: Any) -> None:
        nonlocal is_open
        if message["type"] == "http.response.start":
            is_open = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if is_open:
                cycle.chunked_encoding, cycle.expected_content_length = False, sys.maxsize
        elif is_open and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = plainly  # type: ignore[method-assign]  # uvicorn offers no other way in


def bounded_protocol(settings: ConnectionSettings) -> type[BoundedProtocol]:
    """Return the class of one server's connections: uvicorn makes them, and passes no arguments of ours."""
    attributes: dict[str, Any] = {"guard": Connections(settings)}
    return type("GuardedConnection", (BoundedProtocol,), attributes)
