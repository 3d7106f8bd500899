"""Turns say with which key they were asked for, and are found by it or by their user: others' need not be passed.

The column may be null, and is of turns of before: the table is locked for an instant. Postgres builds the indices
CONCURRENTLY, as revision 3 does; SQLite in its one transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op

revision = "16"
down_revision = "15"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_NEW = {
    "turns_by_key": ["namespace", "key_id", "inference_id"],
    "turns_by_user": ["namespace", "user_id", "inference_id"],
}


def upgrade() -> None:
    with _outside_of_a_transaction():
        if "key_id" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("turns")}:
            op.add_column("turns", sa.Column("key_id", Name))  # an attempt that was cut short leaves it
        for name, columns in _NEW.items():
            _drop(name)  # and an index invalid
            op.create_index(name, "turns", columns, postgresql_concurrently=True)


def downgrade() -> None:
    with _outside_of_a_transaction():
        for name in _NEW:
            _drop(name)
        op.drop_column("turns", "key_id")


def _drop(name: str) -> None:
    op.drop_index(name, "turns", if_exists=True, postgresql_concurrently=True)


@contextmanager
def _outside_of_a_transaction() -> Iterator[None]:
    if op.get_bind().dialect.name == "postgresql":
        with op.get_context().autocommit_block():
            yield
    else:
        yield
