"""Locks for transactions that must run one after another although they share no row."""

from enum import IntEnum

from sqlalchemy import Connection, func, select

OURS = 0x6F6E7764  # `onwd`: the database may be shared, and has one space of such numbers


class Lock(IntEnum):
    VERSIONS = 1
    RELEASES = 2
    REWARDS = 3
    MIGRATION = 4
    ALARMS = 5
    AUDIT = 6
    KEYS = 7
    CONSENTS = 8


def hold(connection: Connection, lock: Lock) -> None:
    """Hold a lock until the end of the transaction.

    The next statement sees what earlier holders wrote. On SQLite this does nothing: its writers are alone in any
    case."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(OURS, lock)))
