"""The sockets of the API's addresses: taken before anything is loaded, and accepted from once there is something."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from core.errors import ConfigError
from core.network.addresses import family_of, in_url
from core.settings import ApiSettings

_BACKLOG: Final = 1024
_LAST_PORT: Final = 65535


@contextmanager
def held(settings: ApiSettings, processes: int = 1) -> Iterator[list[socket.socket]]:
    """Listen at the addresses of so many processes, on ports from the settings' on, until the end of the context.

    Whoever connects waits until somebody accepts, and no other process can take an address meanwhile: begin it before
    what takes long. Where the settings leave the port to the system it is one address, of the first process. Raises
    ConfigError naming the setting at fault."""
    if settings.port and settings.port + processes - 1 > _LAST_PORT:
        raise ConfigError(
            f"api.port: {settings.port}: {processes} processes that answer need as many ports from there on"
        )
    found: list[socket.socket] = []
    try:
        for number in range(processes if settings.port else 1):
            found.append(listen(settings, settings.port + number if settings.port else 0))
        yield found
    finally:
        let_go(found)


def let_go(listeners: Sequence[socket.socket]) -> None:
    """Close them, for processes that listen at those addresses themselves. Closing twice does nothing."""
    for each in listeners:
        each.close()


def listen(settings: ApiSettings, port: int) -> socket.socket:
    """Listen at this port. Raises ConfigError naming the setting at fault."""
    try:
        listener = socket.create_server((settings.host, port), family=family_of(settings.host), backlog=_BACKLOG)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]  # Python adds the address
        raise ConfigError(f"api.port: cannot listen at {in_url(settings.host)}:{port}: {why}") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # uvloop leaves sockets it is handed without it
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # what lies in the system's buffers is not ours to see
        unread_ms = int(settings.connections.write_s * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
    return listener
