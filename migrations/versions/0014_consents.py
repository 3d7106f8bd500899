"""What users allow to be done with what they say.

It adds a table: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "14"
down_revision = "13"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "consents",
        sa.Column("consent_id", number, primary_key=True, autoincrement=True),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("kind", Name, nullable=False),
        sa.Column("subject", Name, nullable=False),
        sa.Column("learn", sa.Boolean, nullable=False),
        sa.Column("store", sa.Boolean, nullable=False),
        sa.Column("purposes", sa.LargeBinary, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("by", Name, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("exclusion_id", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("consents_by_subject", "consents", ["namespace", "kind", "subject", "consent_id"])
    op.create_index("consents_by_exclusion", "consents", ["exclusion_id"])


def downgrade() -> None:
    op.drop_table("consents")
