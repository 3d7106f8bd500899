"""Addresses on the network, as URLs and sockets have them, and which of them no proxy stands before."""

import socket
from collections.abc import MutableMapping
from typing import Final

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def in_url(host: str) -> str:
    """Return the host as a URL has it: an address of IPv6 in brackets (RFC 3986)."""
    return f"[{host}]" if ":" in host else host


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def reach_loopback_directly(environment: MutableMapping[str, str]) -> None:
    """Let no HTTP client of this process or its children ask a proxy for this machine itself.

    They all read `no_proxy`; some read only one of its two spellings."""
    given = [environment.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    hosts = [host.strip() for text in given for host in text.split(",")]
    for name in ("no_proxy", "NO_PROXY"):
        environment[name] = ",".join(dict.fromkeys([*filter(None, hosts), *_LOOPBACK]))
