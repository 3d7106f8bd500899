"""The audit trail, API keys, and what accounts used in each month.

It adds three tables: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "13"
down_revision = "12"

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
    op.create_table(
        "api_keys",
        sa.Column("key_id", Name, primary_key=True),
        sa.Column("digest", Name, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("api_keys_by_digest", "api_keys", ["digest"], unique=True)
    op.create_table(
        "spending",
        sa.Column("month", Name, primary_key=True),
        sa.Column("account", Name, primary_key=True),
        sa.Column("kind", Name, nullable=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
    )
    op.create_index("spending_by_namespace", "spending", ["month", "namespace", "tokens"])


def downgrade() -> None:
    op.drop_table("spending")
    op.drop_table("api_keys")
    op.drop_table("audit")
