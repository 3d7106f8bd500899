"""An HTTP server of threads, for what few ask: metrics, and files for other hosts."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from core.network.addresses import family_of


class ThreadingServer(ThreadingHTTPServer):
    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        """Listen at once, on IPv4 or IPv6 as the host says. Raises OSError."""
        self.address_family = family_of(host)
        super().__init__((host, port), handler)
