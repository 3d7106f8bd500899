"""Orders that exclude turns from learning.

It adds a table: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "10"
down_revision = "9"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "exclusions",
        sa.Column("exclusion_id", number, primary_key=True, autoincrement=True),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("selection", sa.LargeBinary, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("by", Name, nullable=False),
        sa.Column("ordered_at", sa.BigInteger, nullable=False),
        sa.Column("lifted_at", sa.BigInteger),
        sa.Column("lifted_by", Name),
        sa.Column("lifted_why", sa.Text),
        sa.Column("relearning", sa.LargeBinary),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("exclusions")
