"""The services of the tests: a server that was killed returns at the same address."""

import socket
import threading
from pathlib import Path

from services import require_services

from deploy.services.redis import Redis


def test_a_port_that_is_held_for_a_moment_longer_is_waited_for(tmp_path: Path) -> None:
    require_services()
    server = Redis(tmp_path / "redis")
    server.up()
    try:
        address = server.address
        server.kill()
        held = socket.create_server(("127.0.0.1", server.ports["port"]))
        threading.Timer(1.0, held.close).start()
        server.up()
        assert server.address == address
    finally:
        server.kill()
