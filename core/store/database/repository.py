"""What all repositories are made of."""

from sqlalchemy import Connection


class Repository:
    """The rows of one subject, as one transaction sees them."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
