"""The facts that a turn shows by itself, in the scorer's ledger.

It adds a column that may be null: neither Postgres nor SQLite touches a row; the table is locked for an instant."""

import sqlalchemy as sa
from alembic import op

revision = "5"
down_revision = "4"


def upgrade() -> None:
    op.add_column("ledger_turns", sa.Column("facts", sa.LargeBinary))


def downgrade() -> None:
    op.drop_column("ledger_turns", "facts")
