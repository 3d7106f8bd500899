"""What the last reward of a turn said of some of its tokens, in the scorer's ledger.

It adds a column that may be null: neither Postgres nor SQLite touches a row; the table is locked for an instant."""

import sqlalchemy as sa
from alembic import op

revision = "14"
down_revision = "13"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("ledger_turns", sa.Column("on_spans", Name))


def downgrade() -> None:
    op.drop_column("ledger_turns", "on_spans")
