"""The schema of the builds that knew no revisions: their databases are at this one.

It is made on an empty database: nothing is locked that anybody uses."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")
Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")

TABLES = (
    "meta",
    "offsets",
    "turns",
    "outcomes",
    "dead_letters",
    "rewards",
    "ledger_turns",
    "ledger_outcomes",
    "ledger_sessions",
    "policies",
    "releases",
    "leases",
    "experiments",
    "orders",
    "switches",
    "replicas",
    "replica_targets",
)


def upgrade() -> None:
    _turns_and_outcomes()
    _rewards()
    _versions()
    _replicas()
    op.bulk_insert(sa.table("meta", sa.column("key"), sa.column("value")), [{"key": "schema", "value": "1"}])


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)


def _turns_and_outcomes() -> None:
    """Create the tables of turns and outcomes, and of how far they were read."""
    op.create_table(
        "meta",
        sa.Column("key", Name, primary_key=True),
        sa.Column("value", Name, nullable=False),
    )
    op.create_table(
        "offsets",
        sa.Column("consumer_group", Name, primary_key=True),
        sa.Column("topic", Name, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "turns",
        sa.Column("inference_id", Name, primary_key=True),
        sa.Column("session_id", Name, nullable=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("turn_index", sa.Integer, nullable=False),
        sa.Column("parent_id", Name),
        sa.Column("user_id", Name),
        sa.Column("workload", Name, nullable=False),
        sa.Column("purpose", Name, nullable=False),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        sa.Column("policy_version", sa.BigInteger),
        sa.Column("finish_reason", Name, nullable=False),
        sa.Column("trainable", sa.Boolean, nullable=False),
        sa.Column("learn", sa.Boolean, nullable=False),
        sa.Column("transcript_digest", Name),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("turns_by_session", "turns", ["namespace", "session_id", "turn_index"])
    op.create_index("turns_by_transcript", "turns", ["namespace", "transcript_digest"])
    op.create_table(
        "outcomes",
        sa.Column("namespace", Name, primary_key=True),
        sa.Column("outcome_id", Name, primary_key=True),
        sa.Column("inference_id", Name),
        sa.Column("session_id", Name),
        sa.Column("name", Name, nullable=False),
        sa.Column("content_digest", Name, nullable=False),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        sa.Column("supersedes", Name),
        sa.Column("withdrawn", sa.Boolean, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("outcomes_by_inference", "outcomes", ["inference_id"])
    op.create_index("outcomes_by_session", "outcomes", ["session_id"])
    op.create_index("outcomes_by_superseded", "outcomes", ["namespace", "supersedes"])
    op.create_table(
        "dead_letters",
        sa.Column("topic", Name, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("record_offset", sa.BigInteger, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("raw", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )


def _rewards() -> None:
    """Create the tables of rewards and of the scorer's ledger."""
    op.create_table(
        "rewards",
        sa.Column("inference_id", Name, primary_key=True),
        sa.Column("spec", Name, primary_key=True),
        sa.Column("revision", sa.Integer, primary_key=True),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("session_id", Name, nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("final", sa.Boolean, nullable=False),
        sa.Column("decided_at", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("published", sa.Boolean, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("rewards_by_sequence", "rewards", ["sequence"])
    op.create_index("rewards_by_time", "rewards", ["namespace", "sequence"])
    op.create_index("rewards_outbox", "rewards", ["published", "sequence"])
    op.create_table(
        "ledger_turns",
        sa.Column("inference_id", Name, primary_key=True),
        sa.Column("session_id", Name, nullable=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("workload", Name, nullable=False),
        sa.Column("purpose", Name, nullable=False),
        sa.Column("turn_index", sa.Integer, nullable=False),
        sa.Column("empty", sa.Boolean, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("opened_at", sa.BigInteger, nullable=False),
        sa.Column("due_at", sa.BigInteger),
        sa.Column("closed", sa.Boolean, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("decided_at", sa.BigInteger),
        sa.Column("seen_offset", sa.BigInteger, nullable=False),
    )
    op.create_index("ledger_by_session", "ledger_turns", ["namespace", "session_id"])
    op.create_index("ledger_due", "ledger_turns", ["partition", "due_at"])
    op.create_table(
        "ledger_outcomes",
        sa.Column("namespace", Name, primary_key=True),
        sa.Column("outcome_id", Name, primary_key=True),
        sa.Column("inference_id", Name),
        sa.Column("session_id", Name),
        sa.Column("log_offset", sa.BigInteger, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("ledger_outcomes_by_inference", "ledger_outcomes", ["inference_id"])
    op.create_index("ledger_outcomes_by_session", "ledger_outcomes", ["namespace", "session_id"])
    op.create_table(
        "ledger_sessions",
        sa.Column("namespace", Name, primary_key=True),
        sa.Column("session_id", Name, primary_key=True),
        sa.Column("last_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
    )


def _versions() -> None:
    """Create the tables of policies, releases, leases, experiments, orders and switches."""
    op.create_table(
        "policies",
        sa.Column("version", Serial, primary_key=True, autoincrement=True),
        sa.Column("state", Name, nullable=False),
        sa.Column("digest", Name),
        sa.Column("parent", sa.BigInteger),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("record", sa.LargeBinary),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "releases",
        sa.Column("sequence", Serial, primary_key=True, autoincrement=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("cluster", Name, nullable=False),
        sa.Column("state", Name, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("by", Name, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_index("releases_by_cluster", "releases", ["cluster", "state"])
    op.create_table(
        "leases",
        sa.Column("name", Name, primary_key=True),
        sa.Column("holder", Name, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "experiments",
        sa.Column("experiment_id", Name, primary_key=True),
        sa.Column("cluster", Name, nullable=False),
        sa.Column("canary", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("experiments_by_cluster", "experiments", ["cluster", "ended_at"])
    op.create_table(
        "orders",
        sa.Column("order_id", Serial, primary_key=True, autoincrement=True),
        sa.Column("cluster", Name, nullable=False),
        sa.Column("kind", Name, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("by", Name, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("done_at", sa.BigInteger),
        sa.Column("error_code", Name),
        sa.Column("error", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("orders_open", "orders", ["cluster", "done_at"])
    op.create_table(
        "switches",
        sa.Column("cluster", Name, primary_key=True),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )


def _replicas() -> None:
    """Create the tables of engines' hosts and of the targets they are given."""
    op.create_table(
        "replicas",
        sa.Column("name", Name, primary_key=True),
        sa.Column("cluster", Name, nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "replica_targets",
        sa.Column("name", Name, primary_key=True),
        sa.Column("cluster", Name, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
