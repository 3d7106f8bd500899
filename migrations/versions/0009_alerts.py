"""What operators are told of alarms.

It adds tables: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "9"
down_revision = "8"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "alert_targets",
        sa.Column("target", Name, primary_key=True),
        sa.Column("since", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "alerts",
        sa.Column("target", Name, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("change", Name, primary_key=True),
        sa.Column("result", Name, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("alerts")
    op.drop_table("alert_targets")
