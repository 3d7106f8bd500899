"""The tables of those who use the service, and of what they did."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, Table, Text

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

# What operators excluded from learning: see `core.operations.exclusions`.
exclusions = Table(
    "exclusions",
    metadata,
    Column("exclusion_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("by", Name, nullable=False),
    Column("why", Text, nullable=False),
    Column("record", LargeBinary, nullable=False),
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

# What users and sessions consent to: see `core.operations.consents`.
consents = Table(
    "consents",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("kind", Name, primary_key=True),
    Column("name", Name, primary_key=True),  # a user's keyed hash, or the id of a session
    Column("learn", Boolean, nullable=False),
    Column("store", Boolean, nullable=False),
    Column("learn_since", BigInteger),  # null: consent to learning was never withdrawn
    Column("changed_at", BigInteger),
    Column("changed_by", Name),
    Column("takes_back", Boolean, nullable=False),  # the rewards of its turns are still to be taken back
    Column("revision", BigInteger, nullable=False),  # grows with every change of any consent
    Index("consents_by_revision", "revision", unique=True),
)
TAKES_BACK = consents.c.takes_back.is_(True)
Index("consents_to_take_back", consents.c.revision, postgresql_where=TAKES_BACK, sqlite_where=TAKES_BACK)
