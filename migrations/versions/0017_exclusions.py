"""What operators excluded from learning.

It adds a table: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "17"
down_revision = "16"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "exclusions",
        sa.Column(
            "exclusion_id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("by", Name, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("exclusions")
