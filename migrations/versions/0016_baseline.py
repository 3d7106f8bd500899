"""The schema from which on stores are upgraded: what the revisions before it had led to.

It is made in an empty database: nothing is locked that anybody uses."""

import sqlalchemy as sa
from alembic import op

revision = "16"
down_revision = None

Name = sa.String().with_variant(sa.String(collation="C"), "postgresql")
Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
WAITS = sa.column("published").is_(False)
IS_OPEN = sa.column("closed_at").is_(None)
UNTOLD = sa.column("told").is_(False)
TABLES = (
    "alarms",
    "alert_targets",
    "alerts",
    "api_keys",
    "archived",
    "audit",
    "dead_letters",
    "experiments",
    "leases",
    "ledger_outcomes",
    "ledger_sessions",
    "ledger_turns",
    "meta",
    "monitor_references",
    "offsets",
    "orders",
    "outcomes",
    "policies",
    "releases",
    "replica_targets",
    "replicas",
    "rewards",
    "spending",
    "switches",
    "turns",
    "version_files",
)


def upgrade() -> None:
    _log()
    _turns()
    _rewards()
    _versions()
    _operations()
    _monitors()
    _people()
    op.bulk_insert(sa.table("meta", sa.column("key"), sa.column("value")), [{"key": "schema", "value": "2"}])


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)


def _log() -> None:
    """Create the tables of what was read of the log and copied from it."""
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
        sa.Column("next_offset", sa.BigInteger),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "archived",
        sa.Column("topic", Name, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("planned_end", sa.BigInteger),
    )
    op.create_table(
        "dead_letters",
        sa.Column("topic", Name, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("record_offset", sa.BigInteger, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("raw", sa.LargeBinary, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )


def _turns() -> None:
    """Create the tables of turns and of what was said of them."""
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
        sa.Column("policy", Name, nullable=False, server_default="base"),
        sa.Column("client", Name),
        sa.Column("protocol", Name),
        sa.Column("arm", Name),
        sa.Column("key_id", Name),
    )
    op.create_index("turns_by_key", "turns", ["namespace", "key_id", "inference_id"])
    op.create_index("turns_by_latest_transcript", "turns", ["namespace", "transcript_digest", "received_at"])
    op.create_index("turns_by_session", "turns", ["namespace", "session_id", "turn_index"])
    op.create_index("turns_by_time", "turns", ["namespace", "inference_id"])
    op.create_index("turns_by_user", "turns", ["namespace", "user_id", "inference_id"])
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
        sa.Column("partition", sa.Integer),
    )
    op.create_index("rewards_by_time", "rewards", ["namespace", "sequence"])
    op.create_index("rewards_in_order", "rewards", ["sequence"], unique=True)
    op.create_index(
        "rewards_that_wait", "rewards", ["partition", "sequence"], postgresql_where=WAITS, sqlite_where=WAITS
    )
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
        sa.Column("facts", sa.LargeBinary),
        sa.Column("on_spans", Name),
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
    """Create the tables of versions and their files."""
    op.create_table(
        "policies",
        sa.Column("policy", Name, primary_key=True, server_default="base"),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("state", Name, nullable=False),
        sa.Column("digest", Name),
        sa.Column("parent", sa.BigInteger),
        sa.Column("parent_policy", Name, nullable=False, server_default="base"),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("record", sa.LargeBinary),
    )
    op.create_index("policies_by_state", "policies", ["policy", "state", "version"])
    op.create_table(
        "version_files",
        sa.Column("policy", Name, primary_key=True, server_default="base"),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", Name, primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("why", sa.Text),
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
        sa.Column("policy", Name, nullable=False, server_default="base"),
    )
    op.create_index("releases_by_state", "releases", ["cluster", "policy", "state", "sequence"])
    op.create_table(
        "leases",
        sa.Column("name", Name, primary_key=True),
        sa.Column("holder", Name, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )


def _operations() -> None:
    """Create the tables of canaries, of operators' orders and of engines' hosts."""
    op.create_table(
        "experiments",
        sa.Column("experiment_id", Name, primary_key=True),
        sa.Column("cluster", Name, nullable=False),
        sa.Column("canary", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("policy", Name, nullable=False, server_default="base"),
    )
    op.create_index("experiments_by_cluster", "experiments", ["cluster", "policy", "ended_at"])
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
        sa.Column("policy", Name, nullable=False, server_default="base"),
        sqlite_autoincrement=True,
    )
    op.create_index("orders_open", "orders", ["cluster", "policy", "done_at"])
    op.create_table(
        "switches",
        sa.Column("cluster", Name, primary_key=True),
        sa.Column("policy", Name, primary_key=True, server_default="base"),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
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


def _monitors() -> None:
    """Create the tables of alarms and of whom they are told."""
    op.create_table(
        "monitor_references",
        sa.Column("namespace", Name, primary_key=True),
        sa.Column("workload", Name, primary_key=True),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "alarms",
        sa.Column("sequence", Serial, primary_key=True, autoincrement=True),
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
    op.create_index(
        "alarms_open",
        "alarms",
        ["monitor", "namespace", "workload"],
        unique=True,
        postgresql_where=IS_OPEN,
        sqlite_where=IS_OPEN,
    )
    op.create_index("alarms_untold", "alarms", ["sequence"], postgresql_where=UNTOLD, sqlite_where=UNTOLD)
    op.create_table(
        "alerts",
        sa.Column("target", Name, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("change", Name, primary_key=True),
        sa.Column("result", Name, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "alert_targets",
        sa.Column("target", Name, primary_key=True),
        sa.Column("since", sa.BigInteger, nullable=False),
    )


def _people() -> None:
    """Create the tables of keys, of what was done with them, and of what they spent."""
    op.create_table(
        "api_keys",
        sa.Column("key_id", Name, primary_key=True),
        sa.Column("digest", Name, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.BigInteger),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    op.create_index("api_keys_by_digest", "api_keys", ["digest"], unique=True)
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("record", sa.LargeBinary, nullable=False),
        sa.Column("digest", Name, nullable=False),
    )
    op.create_index("audit_by_namespace", "audit", ["namespace", "sequence"])
    op.create_table(
        "spending",
        sa.Column("month", Name, primary_key=True),
        sa.Column("account", Name, primary_key=True),
        sa.Column("kind", Name, nullable=False),
        sa.Column("namespace", Name, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("spending_by_namespace", "spending", ["month", "namespace", "tokens"])
