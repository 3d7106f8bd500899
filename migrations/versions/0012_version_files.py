"""What there is of versions' files: weights, checkpoints, and which of them are wanted again.

It adds a table: nothing is locked. The release controller fills it at its start, from what lies in the blobs."""

import sqlalchemy as sa
from alembic import op

revision = "12"
down_revision = "11"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "version_files",
        sa.Column("policy", Name, primary_key=True, nullable=False, server_default="base"),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", Name, primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("why", sa.Text),
    )


def downgrade() -> None:
    op.drop_table("version_files")
