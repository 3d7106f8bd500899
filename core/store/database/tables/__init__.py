"""The store's tables, the same on SQLite and Postgres.

Times are UTC microseconds since 1970; events are msgpack blobs beside the columns that queries need. The revisions in
`migrations/` lead to exactly these tables: whoever changes one here adds a revision there."""

from core.store.database.tables.events import (
    IS_OPEN,
    UNTOLD,
    WAITS,
    alarms,
    alert_targets,
    alerts,
    archived,
    dead_letters,
    experiments,
    leases,
    ledger_outcomes,
    ledger_sessions,
    ledger_turns,
    meta,
    monitor_references,
    offsets,
    orders,
    outcomes,
    policies,
    releases,
    replica_targets,
    replicas,
    rewards,
    switches,
    turns,
    version_files,
)
from core.store.database.tables.parts import Name, metadata
from core.store.database.tables.people import TAKES_BACK, api_keys, audit, consents, exclusions, spending

REVISION = "18"
"""The revision of the schema below: the newest of `migrations/`."""

__all__ = [
    "IS_OPEN",
    "REVISION",
    "TAKES_BACK",
    "UNTOLD",
    "WAITS",
    "Name",
    "alarms",
    "alert_targets",
    "alerts",
    "api_keys",
    "archived",
    "audit",
    "consents",
    "dead_letters",
    "exclusions",
    "experiments",
    "leases",
    "ledger_outcomes",
    "ledger_sessions",
    "ledger_turns",
    "meta",
    "metadata",
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
]
