"""The audit trail.

It adds a table: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "10"
down_revision = "9"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("digest", Name, nullable=False),
    )
    op.create_index("audit_by_namespace", "audit", ["namespace", "sequence"])


def downgrade() -> None:
    op.drop_table("audit")
