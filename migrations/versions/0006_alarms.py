"""Alarms, and the turns that monitors compare recent ones with.

It adds two tables: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "6"
down_revision = "5"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "alarms",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("alarm_id", Name, nullable=False),
        sa.Column("monitor", Name, nullable=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("workload", Name, nullable=False),
        sa.Column("opened_at", sa.BigInteger, nullable=False),
        sa.Column("acknowledged_at", sa.BigInteger),
        sa.Column("acknowledged_by", Name),
        sa.Column("note", sa.Text),
        sa.Column("closed_at", sa.BigInteger),
        sa.Column("told", sa.Boolean, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("alarms_by_id", "alarms", ["alarm_id"], unique=True)
    is_open = sa.column("closed_at").is_(None)
    op.create_index(
        "alarms_open",
        "alarms",
        ["monitor", "namespace", "workload"],
        unique=True,
        postgresql_where=is_open,
        sqlite_where=is_open,
    )
    untold = sa.column("told").is_(False)
    op.create_index("alarms_untold", "alarms", ["sequence"], postgresql_where=untold, sqlite_where=untold)
    op.create_table(
        "monitor_references",
        sa.Column("namespace", Name, primary_key=True),
        sa.Column("workload", Name, primary_key=True),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("monitor_references")
    op.drop_table("alarms")
