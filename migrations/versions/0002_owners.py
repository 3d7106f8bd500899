"""Partitions have owners: a partition may have no offset yet, and a reward says whose scorer publishes it.

Postgres: `offsets` and `rewards` are locked for two changes of the catalogue, which rewrite nothing, and while the
rewards are found that still wait for the log (few: what a scorer made and had not published). SQLite writes `offsets`,
a row per partition, anew."""

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"

_rewards = sa.table("rewards", sa.column("inference_id"), sa.column("published"), sa.column("partition"))
_ledger = sa.table("ledger_turns", sa.column("inference_id"), sa.column("partition"))
_meta = sa.table("meta", sa.column("key"), sa.column("value"))


def upgrade() -> None:
    with op.batch_alter_table("offsets") as offsets:
        offsets.alter_column("next_offset", existing_type=sa.BigInteger, nullable=True)
    op.add_column("rewards", sa.Column("partition", sa.Integer))
    owner = sa.select(_ledger.c.partition).where(_ledger.c.inference_id == _rewards.c.inference_id)
    waiting = _rewards.c.published.is_(sa.false())
    op.execute(sa.update(_rewards).where(waiting).values(partition=owner.scalar_subquery()))
    lost = sa.select(sa.func.count()).select_from(_rewards).where(waiting, _rewards.c.partition.is_(None))
    assert not op.get_bind().execute(lost).scalar(), "rewards wait for the log whose turns are not in the ledger"
    _say("2")


def downgrade() -> None:
    op.execute("DELETE FROM offsets WHERE next_offset IS NULL")
    with op.batch_alter_table("offsets") as offsets:
        offsets.alter_column("next_offset", existing_type=sa.BigInteger, nullable=False)
    op.drop_column("rewards", "partition")
    _say("1")


def _say(schema: str) -> None:
    """Write the schema for builds that know no revisions: they refuse any schema but 1."""
    op.execute(sa.update(_meta).where(_meta.c.key == "schema").values(value=schema))
