"""Clients that never finish their requests, never read the answers, or hang up: plain sockets, bounded in time."""

import selectors
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

HEADERS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = HEADERS + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
STREAMED = (
    b'{"model": "onward-tiny", "stream": true, "max_tokens": 100, '
    b'"messages": [{"role": "user", "content": "[web] write total(xs): sum of xs"}]}'
)

BEHIND = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 5_000
"""Requests that wait, in one piece, for an answer before them."""


def hang_up(url: str, requests: Iterable[bytes], wait_s: float, over: threading.Event) -> int:
    """Send each request on a connection of its own and go after `wait_s`, until that is `over`.

    Returns how many were sent."""
    address, sent = (urlsplit(url).hostname, urlsplit(url).port), 0
    for request in requests:
        with socket.create_connection(address, 60) as client:
            client.sendall(request)
            sent += 1
            if over.wait(wait_s):
                break
    return sent


def unread(path: str, key: str, body: bytes = b"") -> bytes:
    """Return the bytes of a whole request, whose answer will not be read."""
    method = "POST" if body else "GET"
    length = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n{length}\r\n"
    return head.encode() + body


def besiege(url: str, openings: list[bytes], hold_s: float, rest_s: float = 0.0) -> int:
    """Open a connection for each opening, send it, and read nothing for `hold_s`.

    Returns how many connections the server had ended or not accepted by then, or at the latest `rest_s` later."""
    address = urlsplit(url).hostname, urlsplit(url).port
    with ExitStack() as stack:
        opened = []
        for opening in openings:
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            with suppress(OSError):
                client.connect(address)
                client.sendall(opening)
            opened.append(client)
        time.sleep(hold_s)
        deadline_s, left = time.monotonic() + rest_s, opened
        while True:
            is_over = time.monotonic() >= deadline_s  # before the look: this process itself may stand still for long
            left = [client for client in left if not _is_ended(client)]
            if is_over or not left:
                return len(opened) - len(left)


def _is_ended(client: socket.socket) -> bool:
    """Return whether the server closed the connection; what it sent before is read first."""
    with selectors.DefaultSelector() as selector:
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ)
        deadline_s = time.monotonic() + 0.05
        try:
            while time.monotonic() < deadline_s:
                if selector.select(0.01) and not client.recv(1 << 16):
                    return True
        except OSError:
            return True
    return False
