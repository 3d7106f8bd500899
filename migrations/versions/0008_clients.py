"""Turns say which client sent them, in which protocol; and those of a namespace are read from the newest down.

It adds two columns that may be null: neither Postgres nor SQLite touches a row; the table is locked for an instant.
Postgres builds the index CONCURRENTLY, outside of a transaction, with nothing locked against reads or writes; if it is
cut short, it starts again."""

import sqlalchemy as sa
from alembic import op

revision = "8"
down_revision = "7"

_INDEX = "turns_by_time"
_COLUMNS = ("client", "protocol")
_Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("turns")}
    for name in _COLUMNS:
        if name not in there:  # an attempt that was cut short at the index has added them
            op.add_column("turns", sa.Column(name, _Name))
    if op.get_bind().dialect.name != "postgresql":
        op.create_index(_INDEX, "turns", ["namespace", "inference_id"])
        return
    with op.get_context().autocommit_block():
        op.drop_index(_INDEX, "turns", if_exists=True, postgresql_concurrently=True)
        op.create_index(_INDEX, "turns", ["namespace", "inference_id"], postgresql_concurrently=True)


def downgrade() -> None:
    op.drop_index(_INDEX, "turns")
    for name in _COLUMNS:
        op.drop_column("turns", name)
