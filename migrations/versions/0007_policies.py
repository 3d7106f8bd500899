"""Versions are of a policy: all that there were are of the policy `base`.

Postgres: the columns come with a default and rewrite nothing. `policies`, `releases`, `experiments`, `orders` and
`switches`, a row per version or per word of an operator, are locked while their keys and indices are built anew;
`turns` is locked for an instant. SQLite writes `policies` and `switches` anew.
"""

import sqlalchemy as sa
from alembic import op

revision = "7"
down_revision = "6"

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_GIVEN = ("turns", "releases", "experiments", "orders")  # have a key of their own
_INDICES = {
    "policies_by_state": ("policies", ["state", "version"], ["policy", "state", "version"]),
    "releases_by_state": ("releases", ["cluster", "state", "sequence"], ["cluster", "policy", "state", "sequence"]),
    "experiments_by_cluster": ("experiments", ["cluster", "ended_at"], ["cluster", "policy", "ended_at"]),
    "orders_open": ("orders", ["cluster", "done_at"], ["cluster", "policy", "done_at"]),
}


def upgrade() -> None:
    for name, (table, _, _) in _INDICES.items():
        op.drop_index(name, table)
    for table in _GIVEN:
        op.add_column(table, _policy())
    if op.get_bind().dialect.name == "postgresql":
        _key_in_place()
    else:
        _key_by_copy()
    for name, (table, _, columns) in _INDICES.items():
        op.create_index(name, table, columns)


def _policy(name: str = "policy") -> sa.Column[str]:
    return sa.Column(name, Name, nullable=False, server_default="base")


def _key_in_place() -> None:
    op.add_column("policies", _policy())
    op.add_column("policies", _policy("parent_policy"))
    op.add_column("switches", _policy())
    op.execute("ALTER TABLE policies ALTER COLUMN version DROP DEFAULT")
    op.execute("DROP SEQUENCE policies_version_seq")
    for table, key in (("policies", ["policy", "version"]), ("switches", ["cluster", "policy"])):
        op.drop_constraint(f"{table}_pkey", table)
        op.create_primary_key(f"{table}_pkey", table, key)


def _key_by_copy() -> None:
    op.rename_table("policies", "policies_6")
    op.create_table(
        "policies",
        sa.Column("policy", Name, primary_key=True, nullable=False, server_default="base"),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("state", Name, nullable=False),
        sa.Column("digest", Name),
        sa.Column("parent", sa.BigInteger),
        _policy("parent_policy"),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("record", sa.LargeBinary),
    )
    columns = "version, state, digest, parent, created_at, record"
    op.execute(f"INSERT INTO policies ({columns}) SELECT {columns} FROM policies_6")
    op.drop_table("policies_6")
    op.rename_table("switches", "switches_6")
    op.create_table(
        "switches",
        sa.Column("cluster", Name, primary_key=True),
        sa.Column("policy", Name, primary_key=True, nullable=False, server_default="base"),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.execute("INSERT INTO switches (cluster, record) SELECT cluster, record FROM switches_6")
    op.drop_table("switches_6")


def downgrade() -> None:
    """Go back where the only policy is `base`: an earlier build knows no other."""
    for table in (*_GIVEN, "policies", "switches"):
        others = sa.select(sa.func.count()).select_from(sa.table(table)).where(sa.column("policy") != "base")
        assert not op.get_bind().execute(others).scalar(), f"{table} has rows of other policies"
    for name, (table, _, _) in _INDICES.items():
        op.drop_index(name, table)
    for table in _GIVEN:
        op.drop_column(table, "policy")
    if op.get_bind().dialect.name == "postgresql":
        _unkey_in_place()
    else:
        _unkey_by_copy()
    for name, (table, columns, _) in _INDICES.items():
        op.create_index(name, table, columns)


def _unkey_in_place() -> None:
    for table, key in (("policies", "version"), ("switches", "cluster")):
        op.drop_constraint(f"{table}_pkey", table)
        op.drop_column(table, "policy")
        op.create_primary_key(f"{table}_pkey", table, [key])
    op.drop_column("policies", "parent_policy")
    op.execute("CREATE SEQUENCE policies_version_seq OWNED BY policies.version")
    op.execute("ALTER TABLE policies ALTER COLUMN version SET DEFAULT nextval('policies_version_seq')")
    op.execute("SELECT setval('policies_version_seq', greatest(1, (SELECT max(version) FROM policies)))")


def _unkey_by_copy() -> None:
    op.rename_table("policies", "policies_7")
    op.create_table(
        "policies",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("state", Name, nullable=False),
        sa.Column("digest", Name),
        sa.Column("parent", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("record", sa.LargeBinary),
        sqlite_autoincrement=True,
    )
    columns = "version, state, digest, parent, created_at, record"
    op.execute(f"INSERT INTO policies ({columns}) SELECT {columns} FROM policies_7")
    op.drop_table("policies_7")
    op.rename_table("switches", "switches_7")
    op.create_table(
        "switches",
        sa.Column("cluster", Name, primary_key=True),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.execute("INSERT INTO switches (cluster, record) SELECT cluster, record FROM switches_7")
    op.drop_table("switches_7")
