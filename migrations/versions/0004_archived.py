"""The offset up to which each partition of the log is archived.

It adds a table: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "archived",
        sa.Column("topic", Name, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("planned_end", sa.BigInteger),
    )


def downgrade() -> None:
    op.drop_table("archived")
