"""Ports for servers that must be told theirs before they start, or that come back where they were.

They lie below the range from which the system hands out ports by itself, to listeners and to outgoing connections, so
nobody else gets one before its server binds it. Each worker process of a run has some of its own."""

import os
import socket
from contextlib import ExitStack

_FIRST, _OF_EACH, _WORKERS = 12_000, 1_250, 16  # all below 32768, where the system's own choice begins
_given = os.getpid()  # begins elsewhere than a run beside this one


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free, and that was not given to this process lately."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of so many free ports, one after the other."""
    global _given
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    for _ in range(_OF_EACH):
        place = _given % _OF_EACH
        _given += count
        first = _FIRST + worker * _OF_EACH + place
        if place + count <= _OF_EACH and _are_free(first, count):
            return first
    raise OSError(f"no {count} free ports")


def _are_free(first: int, count: int) -> bool:
    with ExitStack() as held:
        try:
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
    return True
