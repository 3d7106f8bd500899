"""Connections to the API: how long each may take over what, and how many there may be."""

from ipaddress import IPv4Network, IPv6Network

from pydantic import Field

from core.section import Section


class ConnectionSettings(Section):
    header_s: float = Field(default=10.0, gt=0)
    """How long a client may take over a request's headers, and a new connection over its first request."""
    header_bytes: int = Field(default=64 << 10, ge=1 << 10)
    """Most bytes of a request's headers; more are refused with 431."""
    body_s: float = Field(default=60.0, gt=0)
    """How long a client may take over a request's body; after that it is refused with 408."""
    idle_s: float = Field(default=75.0, gt=0)
    """How long a connection is kept without a request. It should be longer than clients keep theirs, or the API closes
    a connection while a client writes to it."""
    write_s: float = Field(default=30.0, gt=0)
    """How long a client may read nothing of an answer before its connection is broken off."""
    unread_bytes: int = Field(default=128 << 20, ge=1 << 20)
    """Most bytes of answers that all clients together have not taken; beyond that the connection that was read longest
    ago is closed, of the namespace, and of its key, that hold most. A larger answer is broken off."""
    total: int = Field(default=4096, ge=1)
    """Connections at once; more are refused with 503."""
    per_address: int = Field(default=256, ge=1)
    """Connections from one address at once (for IPv6: from one /64); more are refused with 503."""
    trusted: tuple[IPv4Network | IPv6Network, ...] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
    """Networks whose addresses may have any number of them: for proxies, whose connections belong to many people."""
