"""Indices for many rows: no query walks all that was ever said, scored or released.

Postgres: each is built and dropped CONCURRENTLY, outside of a transaction, and waits for earlier transactions; nothing
is locked against reads or writes. If it is cut short, it starts again. SQLite builds them in its one transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"

_WAITS = sa.column("published").is_(sa.false())
_Index = tuple[str, str, list[str], dict[str, Any]]
NEW: list[_Index] = [
    ("turns_by_latest_transcript", "turns", ["namespace", "transcript_digest", "received_at"], {}),
    ("rewards_in_order", "rewards", ["sequence"], {"unique": True}),
    (
        "rewards_that_wait",
        "rewards",
        ["partition", "sequence"],
        {"postgresql_where": _WAITS, "sqlite_where": _WAITS},
    ),
    ("policies_by_state", "policies", ["state", "version"], {}),
    ("releases_by_state", "releases", ["cluster", "state", "sequence"], {}),
]
OLD: list[_Index] = [
    ("turns_by_transcript", "turns", ["namespace", "transcript_digest"], {}),
    ("rewards_by_sequence", "rewards", ["sequence"], {}),
    ("rewards_outbox", "rewards", ["published", "sequence"], {}),
    ("releases_by_cluster", "releases", ["cluster", "state"], {}),
]


def upgrade() -> None:
    _replace(OLD, NEW)


def downgrade() -> None:
    _replace(NEW, OLD)


def _replace(old: list[_Index], new: list[_Index]) -> None:
    """Build the new indices before dropping the old ones, so that no query goes without."""
    with _outside_of_a_transaction():
        for name, table, columns, options in new:
            _drop(name, table)  # an attempt that was cut short leaves it invalid
            op.create_index(name, table, columns, postgresql_concurrently=True, **options)
        for name, table, _, _ in old:
            _drop(name, table)


def _drop(name: str, table: str) -> None:
    op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)


@contextmanager
def _outside_of_a_transaction() -> Iterator[None]:
    if op.get_bind().dialect.name == "postgresql":
        with op.get_context().autocommit_block():
            yield
    else:
        yield
