"""A host's server for the files that it keeps: GET /weights/CHECKSUM.

200: the file. 202: this host fetches it at this moment, under the name in the header. 404: it has none. 503: it gives
files to as many as it can. A checksum is a key as well: it stands in the version's manifest, and nobody guesses it."""

import os
import shutil
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from core.network.threading_server import ThreadingServer
from serving.weights.sharing.kept_files import KeptFiles

FETCHER = "x-onward-fetcher"
_PREFIX, _DIGITS, _LENGTH = "/weights/", frozenset("0123456789abcdef"), 64
_AT_ONCE = 2  # files on their way to other hosts
_STALLED_S = 30.0  # a receiver that takes nothing for so long is given up
_LOOK_S = 0.5  # whether it is to end


def path_of(checksum: str) -> str:
    return f"{_PREFIX}{checksum}"


def checksum_in(path: str) -> str | None:
    """Return the checksum that a path asks for, and nothing else than one: it becomes part of a file's name."""
    asked = path.removeprefix(_PREFIX)
    return asked if asked != path and len(asked) == _LENGTH and _DIGITS.issuperset(asked) else None


class WeightsServer:
    """Gives kept files to other hosts, from threads of its own."""

    def __init__(self, kept: KeptFiles, host: str, port: int) -> None:
        """Begin. Raises OSError where the port is taken."""
        self._server = ThreadingServer(host, port, _handler(kept))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), name="weights", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(kept: KeptFiles) -> type[BaseHTTPRequestHandler]:
    giving = threading.BoundedSemaphore(_AT_ONCE)

    class SharedFilesHandler(BaseHTTPRequestHandler):
        timeout = _STALLED_S

        def do_GET(self) -> None:
            with suppress(ConnectionError, TimeoutError):  # who asked has gone, or takes no more
                checksum = checksum_in(self.path)
                if checksum is None:
                    self._answer(404)
                elif file := kept.find(checksum):
                    self._give(file)
                elif fetcher := kept.fetcher(checksum):
                    self._answer(202, {FETCHER: fetcher})
                elif file := kept.find(checksum):  # the fetch has ended between the two looks
                    self._give(file)
                else:
                    self._answer(404)

        def _give(self, file: Path) -> None:
            if not giving.acquire(blocking=False):
                return self._answer(503)
            try:
                with file.open("rb") as content:  # it may be let go meanwhile: the content stays
                    self._answer(200, length=os.fstat(content.fileno()).st_size)
                    shutil.copyfileobj(content, self.wfile)
            except FileNotFoundError:
                self._answer(404)
            finally:
                giving.release()

        def _answer(self, status: int, headers: dict[str, str] | None = None, length: int = 0) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Files given are no news."""

    return SharedFilesHandler
