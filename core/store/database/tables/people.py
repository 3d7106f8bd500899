"""The tables of those who use the service, and of what they did."""

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table

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
    Column("stored_bytes", BigInteger, nullable=False),
    Column("new_prompt_tokens", BigInteger),  # null: a build that did not count them had a part in the month
    Column("output_tokens", BigInteger),
    Index("spending_by_namespace", "month", "namespace", "tokens"),
)
