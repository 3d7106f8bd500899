"""Orders to erase, the steps of each, keys of sessions for media that cannot be rewritten, and a list of exports.

It adds tables: nothing is locked."""

import sqlalchemy as sa
from alembic import op

revision = "12"
down_revision = "11"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "erasures",
        sa.Column("erasure_id", number, primary_key=True, autoincrement=True),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("kind", Name, nullable=False),
        sa.Column("subject", Name, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("by", Name, nullable=False),
        sa.Column("ordered_at", sa.BigInteger, nullable=False),
        sa.Column("deadline_at", sa.BigInteger, nullable=False),
        sa.Column("found", sa.LargeBinary, nullable=False),
        sa.Column("waits_for", sa.Text, nullable=False),
        sa.Column("done_at", sa.BigInteger),
        sa.Column("statement", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("erasures_of_subject", "erasures", ["namespace", "kind", "subject"])
    op.create_table(
        "erasure_steps",
        sa.Column("erasure_id", sa.BigInteger, primary_key=True),
        sa.Column("place", Name, primary_key=True),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "session_keys",
        sa.Column("key_id", sa.LargeBinary, primary_key=True),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("session_id", Name, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("made_at", sa.BigInteger, nullable=False),
        sa.Column("retired_at", sa.BigInteger),
    )
    op.create_index("session_keys_of_session", "session_keys", ["namespace", "session_id"])
    op.create_table(
        "exports",
        sa.Column("export_id", number, primary_key=True, autoincrement=True),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("form", Name, nullable=False),
        sa.Column("made_at", sa.BigInteger, nullable=False),
        sa.Column("sessions", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    for name in ("exports", "session_keys", "erasure_steps", "erasures"):
        op.drop_table(name)
