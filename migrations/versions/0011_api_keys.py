"""API keys that are made while the service runs.

It adds a table: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "11"
down_revision = "10"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", Name, primary_key=True),
        sa.Column("digest", Name, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("api_keys_by_digest", "api_keys", ["digest"], unique=True)


def downgrade() -> None:
    op.drop_table("api_keys")
