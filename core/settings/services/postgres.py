"""PostgreSQL, the store of mode `distributed`."""

from pydantic import Field

from core.section import Section
from core.settings.services.address import Address


class PostgresSettings(Section):
    url: Address = Field(default="postgresql://onward@127.0.0.1:5432/onward", repr=False)
    """The database, as libpq takes it; its password may be spelled as it is, and is better in the environment than
    in the file."""
    pool_size: int = Field(default=8, ge=1)
    """Connections that a process keeps open, at most."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """How long a connection may take to be made, in whole seconds and at least 2, and how long one is waited for."""
    statement_timeout_s: float = Field(default=30.0, gt=0)
    """How long a statement may take, and how long a transaction may do nothing."""
