"""By which names of other clusters an order to erase is known, however many came after it.

It adds a table, and reads the orders: nothing is locked."""

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "16"
down_revision = "15"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")


class _Found(msgspec.Struct):
    """What an order's record says of it; the rest is left out."""

    origins: tuple[str, ...] = ()


def upgrade() -> None:
    table = op.create_table(
        "erasure_origins",
        sa.Column("origin", Name, primary_key=True),
        sa.Column("erasure_id", sa.BigInteger, nullable=False),
    )
    orders = sa.table("erasures", sa.column("erasure_id"), sa.column("found"))
    known: dict[str, int] = {}
    for row in op.get_bind().execute(sa.select(orders.c.erasure_id, orders.c.found).order_by(orders.c.erasure_id)):
        for origin in msgspec.msgpack.decode(row.found, type=_Found).origins:
            known[origin] = row.erasure_id  # given twice: the newest was found
    if known:
        op.bulk_insert(table, [{"origin": origin, "erasure_id": number} for origin, number in known.items()])


def downgrade() -> None:
    op.drop_table("erasure_origins")
