"""Engines report, and are told, what they serve of each policy: what was there is of the policy `base`.

Both tables are small and written anew by their owners every second: SQLite copies them, and on
Postgres they are locked for an instant."""

import sqlalchemy as sa
from alembic import op

revision = "11"
down_revision = "10"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_COLUMNS = {"replicas": "name, cluster, heartbeat_at, record", "replica_targets": "name, cluster, record"}


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table in _COLUMNS:
            op.add_column(table, sa.Column("policy", Name, nullable=False, server_default="base"))
            op.drop_constraint(f"{table}_pkey", table)
            op.create_primary_key(f"{table}_pkey", table, ["name", "policy"])
    else:
        _copy("former", has_policy=True)


def downgrade() -> None:
    """Go back where the only policy is `base`: an earlier build knows no other."""
    for table in _COLUMNS:
        op.execute(f"DELETE FROM {table} WHERE policy != 'base'")  # its hosts and its controller write them again
    if op.get_bind().dialect.name == "postgresql":
        for table in _COLUMNS:
            op.drop_constraint(f"{table}_pkey", table)
            op.drop_column(table, "policy")
            op.create_primary_key(f"{table}_pkey", table, ["name"])
    else:
        _copy("former", has_policy=False)


def _copy(former: str, *, has_policy: bool) -> None:
    for table, columns in _COLUMNS.items():
        made = [sa.Column("name", Name, primary_key=True)]
        if has_policy:
            made.append(sa.Column("policy", Name, primary_key=True, nullable=False, server_default="base"))
        made.append(sa.Column("cluster", Name, nullable=False))
        if table == "replicas":
            made.append(sa.Column("heartbeat_at", sa.BigInteger, nullable=False))
        op.rename_table(table, former)
        op.create_table(table, *made, sa.Column("record", sa.LargeBinary, nullable=False))
        op.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {former}")
        op.drop_table(former)
