"""Turns say which arm served them: live, canary or holdback.

It adds a column that may be null: neither Postgres nor SQLite touches a row; the table is locked for an instant."""

import sqlalchemy as sa
from alembic import op

revision = "15"
down_revision = "14"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("turns", sa.Column("arm", Name))


def downgrade() -> None:
    op.drop_column("turns", "arm")
