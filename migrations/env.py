"""The script that Alembic runs to migrate, on the connection and under the locks of `core.store.database.schema`."""

from alembic import context

from core.store.database import tables

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=tables.metadata,
    transactional_ddl=True,  # SQLite's is too: Alembic leaves it off for drivers that commit behind one's back
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
