"""Months say how many of their tokens were new in a prompt, and how many were sampled; users' consents are kept.

The columns may be null, and are for months that an earlier build counted in: the table is locked for an instant. The
consents are a table of their own: nothing is locked for it."""

import sqlalchemy as sa
from alembic import op

revision = "18"
down_revision = "17"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_COUNTS = ("new_prompt_tokens", "output_tokens")


def upgrade() -> None:
    for name in _COUNTS:
        op.add_column("spending", sa.Column(name, sa.BigInteger))
    op.create_table(
        "consents",
        sa.Column("namespace", Name, primary_key=True),
        sa.Column("kind", Name, primary_key=True),
        sa.Column("name", Name, primary_key=True),
        sa.Column("learn", sa.Boolean, nullable=False),
        sa.Column("store", sa.Boolean, nullable=False),
        sa.Column("learn_since", sa.BigInteger),
        sa.Column("changed_at", sa.BigInteger),
        sa.Column("changed_by", Name),
        sa.Column("takes_back", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )
    op.create_index("consents_by_revision", "consents", ["revision"], unique=True)
    waiting = sa.column("takes_back", sa.Boolean).is_(True)
    op.create_index("consents_to_take_back", "consents", ["revision"], postgresql_where=waiting, sqlite_where=waiting)


def downgrade() -> None:
    op.drop_table("consents")
    for name in _COUNTS:
        op.drop_column("spending", name)
