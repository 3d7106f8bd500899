"""An HTTP server of threads, for what few ask: metrics, and files for other hosts."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from core.network.addresses import family_of

_AT_ONCE: Final = 64


class ThreadingServer(ThreadingHTTPServer):
    """It has so many connections at once; what exceeds them is hung up on, since each takes a thread."""

    def __init__(
        self, host: str, port: int, handler: type[BaseHTTPRequestHandler], listener: socket.socket | None = None
    ) -> None:
        """Listen at once, on IPv4 or IPv6 as the host says, or accept from `listener`, which is its own then.

        Raises OSError."""
        self.address_family = family_of(host)
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__((host, port), handler, bind_and_activate=listener is None)
        if listener is not None:
            self.socket.close()
            self.socket = listener

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no more threads
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()
