"""Redis, the live state of mode `distributed`."""

from pydantic import Field

from core.section import Section
from core.settings.services.address import Address


class RedisSettings(Section):
    url: Address = Field(default="redis://127.0.0.1:6379/0", repr=False)
    """The server: `redis://`, `rediss://` (TLS) or `unix://`."""
    prefix: str = Field(default="onward:", pattern=r"^[a-zA-Z0-9:._-]*$")
    """Put before all keys: several installations share one server."""
    timeout_s: float = Field(default=0.25, gt=0)
    """How long an answer may take; then requests go on without it."""
    entry_ttl_s: float = Field(default=86400.0, gt=0)
    """How long entries live after they were last used."""
