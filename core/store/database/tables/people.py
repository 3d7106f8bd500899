"""The tables of who may do what, what they allow, and what is erased."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
)

from core.store.database.tables.parts import Name, metadata

# The audit trail, each entry with the digest of the one before: see `core.operations.audit`.
audit = Table(
    "audit",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("namespace", Name, nullable=False),  # "": about everybody
    Column("record", LargeBinary, nullable=False),
    Column("digest", Name, nullable=False),
    Index("audit_by_namespace", "namespace", "sequence"),
)

# API keys beside those of the settings; of a key only its digest: see `core.operations.keys`.
api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Name, primary_key=True),
    Column("digest", Name, nullable=False),
    Column("revision", BigInteger, nullable=False),  # grows with every change of any key
    Column("used_at", BigInteger),  # null: never; else the hour of its latest use
    Column("record", LargeBinary, nullable=False),
    Index("api_keys_by_digest", "digest", unique=True),
)

# What accounts used in each month: see `core.operations.quotas`.
spending = Table(
    "spending",
    metadata,
    Column("month", Name, primary_key=True),  # 2026-11, of UTC
    Column("account", Name, primary_key=True),
    Column("kind", Name, nullable=False),
    Column("namespace", Name, nullable=False),
    Column("name", Name, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Index("spending_by_namespace", "month", "namespace", "tokens"),
)

# What was used, by whom, by whose policy: see `core.operations.costs`.
costs = Table(
    "costs",
    metadata,
    Column("month", Name, primary_key=True),  # 2026-11, of UTC
    Column("namespace", Name, primary_key=True),  # "": a policy's learner
    Column("policy", Name, primary_key=True),
    Column("turns", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("answer_ms", BigInteger, nullable=False),
    Column("logged_bytes", BigInteger, nullable=False),
    Column("learner_ms", BigInteger, nullable=False),
)

# What users allow to be done with what they say, word by word: see `core.operations.consents`.
consents = Table(
    "consents",
    metadata,
    Column("consent_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("namespace", Name, nullable=False),
    Column("kind", Name, nullable=False),
    Column("subject", Name, nullable=False),
    Column("learn", Boolean, nullable=False),
    Column("store", Boolean, nullable=False),
    Column("purposes", LargeBinary, nullable=False),
    Column("why", Text, nullable=False),
    Column("by", Name, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("exclusion_id", BigInteger),  # null: it excludes nothing
    Index("consents_by_subject", "namespace", "kind", "subject", "consent_id"),
    Index("consents_by_exclusion", "exclusion_id"),
    sqlite_autoincrement=True,
)

# Orders to erase, and the places where each was obeyed: see `core.operations.erasures`.
erasures = Table(
    "erasures",
    metadata,
    Column("erasure_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("namespace", Name, nullable=False),
    Column("kind", Name, nullable=False),
    Column("subject", Name, nullable=False),  # a user's hash, a session's id
    Column("why", Text, nullable=False),
    Column("by", Name, nullable=False),
    Column("ordered_at", BigInteger, nullable=False),
    Column("deadline_at", BigInteger, nullable=False),
    Column("found", LargeBinary, nullable=False),  # its sessions so far, and the orders that exclude them
    Column("waits_for", Text, nullable=False),
    Column("done_at", BigInteger),  # null: in force
    Column("statement", Text),
    Index("erasures_of_subject", "namespace", "kind", "subject"),
    sqlite_autoincrement=True,
)

erasure_steps = Table(
    "erasure_steps",
    metadata,
    Column("erasure_id", BigInteger, primary_key=True, autoincrement=False),
    Column("place", Name, primary_key=True),
    Column("record", LargeBinary, nullable=False),
)

# The names by which other clusters call orders that came from them: `frankfurt/7`.
erasure_origins = Table(
    "erasure_origins",
    metadata,
    Column("origin", Name, primary_key=True),
    Column("erasure_id", BigInteger, nullable=False),
)

# The keys of records in media that cannot be rewritten: to delete one erases them (see `core.store.erasure.keys`).
session_keys = Table(
    "session_keys",
    metadata,
    Column("key_id", LargeBinary, primary_key=True),
    Column("namespace", Name, nullable=False),
    Column("session_id", Name, nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("made_at", BigInteger, nullable=False),
    Column("retired_at", BigInteger),  # null: new records are sealed with it
    Index("session_keys_of_session", "namespace", "session_id"),
)

# What left in files: an erasure names those that a turn is in.
exports = Table(
    "exports",
    metadata,
    Column("export_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("place", Text, nullable=False),
    Column("form", Name, nullable=False),
    Column("made_at", BigInteger, nullable=False),
    Column("sessions", LargeBinary, nullable=False),  # digests of eight bytes, sorted, compressed
    sqlite_autoincrement=True,
)
