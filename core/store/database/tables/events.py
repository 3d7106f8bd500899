"""The tables of what happened: turns, rewards, versions, releases, and what works on them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
)

from core.store.database.tables.parts import Name, metadata, of_policy

# Its one row says that the tables are there; `alembic_version` says at which revision.
meta = Table("meta", metadata, Column("key", Name, primary_key=True), Column("value", Name, nullable=False))

# A consumer group's next offset, written in the same transaction as the effects of what came before it. The epoch grows
# with every owner of the partition: see `core.store.offsets`.
offsets = Table(
    "offsets",
    metadata,
    Column("consumer_group", Name, primary_key=True),
    Column("topic", Name, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("next_offset", BigInteger),  # null: owned, and nothing done yet
    Column("epoch", BigInteger, nullable=False),
)

# How far each partition of the log is in the archive: see `core.store.archived`.
archived = Table(
    "archived",
    metadata,
    Column("topic", Name, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
    Column("planned_end", BigInteger),  # of the stretch whose files are being written; null: of none
)

turns = Table(
    "turns",
    metadata,
    Column("inference_id", Name, primary_key=True),
    Column("session_id", Name, nullable=False),
    Column("namespace", Name, nullable=False),
    Column("turn_index", Integer, nullable=False),
    Column("parent_id", Name),
    Column("user_id", Name),
    Column("workload", Name, nullable=False),
    Column("purpose", Name, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("policy_version", BigInteger),  # of the last token; null when there is none
    Column("finish_reason", Name, nullable=False),
    Column("trainable", Boolean, nullable=False),
    Column("learn", Boolean, nullable=False),
    Column("transcript_digest", Name),
    Column("record", LargeBinary, nullable=False),
    of_policy(),
    Column("client", Name),  # null: nobody noted it; so the protocol
    Column("protocol", Name),
    Column("arm", Name),  # that served it; null: nobody noted it
    Column("key_id", Name),  # with which it was asked for; null: none, or nobody noted it
    Index("turns_by_time", "namespace", "inference_id"),  # an id begins with the time
    Index("turns_by_session", "namespace", "session_id", "turn_index"),
    Index("turns_by_key", "namespace", "key_id", "inference_id"),
    Index("turns_by_user", "namespace", "user_id", "inference_id"),
    Index("turns_by_latest_transcript", "namespace", "transcript_digest", "received_at"),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("outcome_id", Name, primary_key=True),
    Column("inference_id", Name),
    Column("session_id", Name),
    Column("name", Name, nullable=False),
    Column("content_digest", Name, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("supersedes", Name),
    Column("withdrawn", Boolean, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Index("outcomes_by_inference", "inference_id"),
    Index("outcomes_by_session", "session_id"),
    Index("outcomes_by_superseded", "namespace", "supersedes"),
)

rewards = Table(
    "rewards",
    metadata,
    Column("inference_id", Name, primary_key=True),
    Column("spec", Name, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("namespace", Name, nullable=False),
    Column("session_id", Name, nullable=False),
    Column("value", Float, nullable=False),
    Column("final", Boolean, nullable=False),
    Column("decided_at", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),  # order of emission
    Column("published", Boolean, nullable=False),  # false: still in the outbox
    Column("record", LargeBinary, nullable=False),
    Column("partition", Integer),  # of onward.turns: whose scorer publishes it; null: nobody noted it, published
    Index("rewards_in_order", "sequence", unique=True),
    Index("rewards_by_time", "namespace", "sequence"),
)
WAITS = rewards.c.published.is_(False)
Index("rewards_that_wait", rewards.c.partition, rewards.c.sequence, postgresql_where=WAITS, sqlite_where=WAITS)

# The scorer's own view of turns: it must not depend on how far the writer has come.
ledger_turns = Table(
    "ledger_turns",
    metadata,
    Column("inference_id", Name, primary_key=True),
    Column("session_id", Name, nullable=False),
    Column("namespace", Name, nullable=False),
    Column("workload", Name, nullable=False),
    Column("purpose", Name, nullable=False),
    Column("turn_index", Integer, nullable=False),
    Column("empty", Boolean, nullable=False),  # no text and no tool call
    Column("partition", Integer, nullable=False),  # of onward.turns: each keeps its own event time
    Column("opened_at", BigInteger, nullable=False),
    Column("due_at", BigInteger),  # when waits are over; null: none runs, only outcomes can move it
    Column("closed", Boolean, nullable=False),  # its waits ran out, for good
    Column("revision", Integer, nullable=False),  # of the last reward; -1: none yet
    Column("value", Float),
    Column("decided_at", BigInteger),  # of the last reward
    Column("seen_offset", BigInteger, nullable=False),  # outcomes before it were known to the last reward
    Column("facts", LargeBinary),  # what it shows by itself; null: nobody noted it
    Column("on_spans", Name),  # digest of what the last reward says of some tokens; null: nothing
    Index("ledger_due", "partition", "due_at"),
    Index("ledger_by_session", "namespace", "session_id"),
)

ledger_outcomes = Table(
    "ledger_outcomes",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("outcome_id", Name, primary_key=True),
    Column("inference_id", Name),
    Column("session_id", Name),  # that of its turn too; null: the turn is not known yet
    Column("log_offset", BigInteger, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Index("ledger_outcomes_by_inference", "inference_id"),
    Index("ledger_outcomes_by_session", "namespace", "session_id"),
)

ledger_sessions = Table(
    "ledger_sessions",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("session_id", Name, primary_key=True),
    Column("last_at", BigInteger, nullable=False),  # of its latest turn
    Column("ended_at", BigInteger),  # null: it goes on
)

policies = Table(
    "policies",
    metadata,
    of_policy(primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("state", Name, nullable=False),  # allocated, then a ReleaseState
    Column("digest", Name),
    Column("parent", BigInteger),
    of_policy("parent_policy"),
    Column("created_at", BigInteger, nullable=False),
    Column("record", LargeBinary),  # null while only allocated
    Index("policies_by_state", "policy", "state", "version"),
)

# What there is of a version beside its row: few versions have anything.
version_files = Table(
    "version_files",
    metadata,
    of_policy(primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Name, primary_key=True),  # weights, checkpoint; wanted, lost: see VersionFiles
    Column("bytes", BigInteger, nullable=False, server_default="0"),  # of weights
    Column("why", Text),  # of what is lost
)

releases = Table(
    "releases",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("version", BigInteger, nullable=False),
    Column("cluster", Name, nullable=False),
    Column("state", Name, nullable=False),
    Column("why", Text, nullable=False),
    Column("by", Name, nullable=False),
    Column("at", BigInteger, nullable=False),
    of_policy(),
    Index("releases_by_state", "cluster", "policy", "state", "sequence"),
)

# Who may decide: the holder's epoch fences out those who lost the lease without noticing.
leases = Table(
    "leases",
    metadata,
    Column("name", Name, primary_key=True),
    Column("holder", Name, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

replicas = Table(
    "replicas",
    metadata,
    Column("name", Name, primary_key=True),
    Column("cluster", Name, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("record", LargeBinary, nullable=False),
)

replica_targets = Table(
    "replica_targets",
    metadata,
    Column("name", Name, primary_key=True),
    Column("cluster", Name, nullable=False),
    Column("record", LargeBinary, nullable=False),
)

experiments = Table(
    "experiments",
    metadata,
    Column("experiment_id", Name, primary_key=True),
    Column("cluster", Name, nullable=False),
    Column("canary", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("record", LargeBinary, nullable=False),
    of_policy(),
    Index("experiments_by_cluster", "cluster", "policy", "ended_at"),
)

orders = Table(
    "orders",
    metadata,
    Column("order_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("cluster", Name, nullable=False),
    Column("kind", Name, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
    Column("by", Name, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("done_at", BigInteger),
    Column("error_code", Name),
    Column("error", Text),
    of_policy(),
    Index("orders_open", "cluster", "policy", "done_at"),
    sqlite_autoincrement=True,
)

switches = Table(
    "switches",
    metadata,
    Column("cluster", Name, primary_key=True),
    of_policy(primary_key=True),
    Column("record", LargeBinary, nullable=False),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("topic", Name, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("record_offset", BigInteger, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("raw", LargeBinary, nullable=False),
    Column("at", BigInteger, nullable=False),
)

# What monitors found, and what became of it; at most one open of a monitor in a workload: see `core.store.alarms`.
alarms = Table(
    "alarms",
    metadata,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("alarm_id", Name, nullable=False),
    Column("monitor", Name, nullable=False),
    Column("namespace", Name, nullable=False),
    Column("workload", Name, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("acknowledged_at", BigInteger),
    Column("acknowledged_by", Name),
    Column("note", Text),
    Column("closed_at", BigInteger),
    Column("told", Boolean, nullable=False),  # false: the log does not know its state yet
    Column("record", LargeBinary, nullable=False),
    Index("alarms_by_id", "alarm_id", unique=True),
    sqlite_autoincrement=True,
)
IS_OPEN = alarms.c.closed_at.is_(None)
UNTOLD = alarms.c.told.is_(False)
Index(
    "alarms_open",
    alarms.c.monitor,
    alarms.c.namespace,
    alarms.c.workload,
    unique=True,
    postgresql_where=IS_OPEN,
    sqlite_where=IS_OPEN,
)
Index("alarms_untold", alarms.c.sequence, postgresql_where=UNTOLD, sqlite_where=UNTOLD)

# The turns that a workload's recent ones are held against.
monitor_references = Table(
    "monitor_references",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("workload", Name, primary_key=True),
    Column("record", LargeBinary, nullable=False),
)

# Whom the settings name to be told of alarms, since when, and what became of each change: see `core.operations.alerts`.
alert_targets = Table(
    "alert_targets",
    metadata,
    Column("target", Name, primary_key=True),
    Column("since", BigInteger, nullable=False),
)
alerts = Table(
    "alerts",
    metadata,
    Column("target", Name, primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),  # of the alarm
    Column("change", Name, primary_key=True),
    Column("result", Name, nullable=False),
    Column("at", BigInteger, nullable=False),
)
