"""Months say how many of their tokens were new in a prompt, and how many were sampled: what prices are of.

The columns may be null, and are for months that an earlier build counted in: the table is locked for an instant."""

import sqlalchemy as sa
from alembic import op

revision = "18"
down_revision = "16"  # the newest before it: the one thing to change where another revision comes between

_COUNTS = ("new_prompt_tokens", "output_tokens")


def upgrade() -> None:
    for name in _COUNTS:
        op.add_column("spending", sa.Column(name, sa.BigInteger))


def downgrade() -> None:
    for name in _COUNTS:
        op.drop_column("spending", name)
