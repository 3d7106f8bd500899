"""What transactions must do one after another, although no row of theirs says so."""

from enum import IntEnum

from sqlalchemy import Connection, func, select

OURS = 0x6F6E7764  # `onwd`: the database may be shared, and has one space of such numbers


class Lock(IntEnum):
    VERSIONS = 1
    RELEASES = 2
    REWARDS = 3
    MIGRATION = 4
    ALARMS = 5


def hold(connection: Connection, lock: Lock) -> None:
    """From here to the end of the transaction nobody else holds it. What those before wrote is seen by the next
    statement. SQLite's writers are alone in any case."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(OURS, lock)))
