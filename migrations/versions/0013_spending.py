"""What accounts used in each month.

It adds a table: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "13"
down_revision = "12"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "spending",
        sa.Column("month", Name, primary_key=True),
        sa.Column("account", Name, primary_key=True),
        sa.Column("kind", Name, nullable=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("spending_by_namespace", "spending", ["month", "namespace", "tokens"])


def downgrade() -> None:
    op.drop_table("spending")
