"""Termination of row owners that fell silent in the middle of a transaction: paused, or cut off from the network.

A server ends transactions that are idle and statements that are slow, but not a client's that stopped between the
messages of one pipeline: neither timer runs there (PostgreSQL's manual, statement_timeout and
idle_in_transaction_session_timeout), and its locks stay for as long as its process does. So a process that wants to
take its place ends it."""

from sqlalchemy import Connection, Table, text

_END = text(
    """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
    AND xact_start < clock_timestamp() - CAST(current_setting('statement_timeout') AS interval)
    AND pid IN (
        SELECT pid FROM pg_locks
        WHERE granted AND relation = CAST(:name AS regclass) AND mode IN ('RowShareLock', 'RowExclusiveLock')
    )
    """
)


def end_silent_owners(connection: Connection, table: Table) -> None:
    """End sessions that have held rows of `table` for longer than any statement may take.

    Their transactions are rolled back. One that is alive after all finds its connection closed, and goes on with
    another. On SQLite this does nothing, as nobody else's transactions are open."""
    if connection.dialect.name == "postgresql":
        connection.execute(_END, {"name": table.name})
