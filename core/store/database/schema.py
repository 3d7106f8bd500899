"""The schema's revision, and the way from an older one to this build's: the revisions in `migrations/`, with Alembic.

Alembic takes long to import, and is imported only where a schema changes."""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    delete,
    insert,
    inspect,
    select,
)

from core.errors import ConfigError
from core.store.database import tables

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).resolve().parents[3] / "migrations"
"""The folder of revisions, beside `core`."""
BASELINE = "16"
"""The first of them: from it on, a store of every revision is upgraded."""
_BEFORE_REVISIONS = "1"
_version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def found_revision(connection: Connection) -> str | None:
    """Return the revision of the database's schema, or None while there are no tables."""
    names = inspect(connection).get_table_names()
    if _version.name in names:
        return connection.execute(select(_version.c.version_num)).scalar()
    return _BEFORE_REVISIONS if tables.meta.name in names else None


def create(connection: Connection) -> None:
    """Create the newest schema in an empty database: the same that the revisions lead to, but faster."""
    tables.metadata.create_all(connection)
    connection.execute(insert(tables.meta).values(key="schema", value="2"))
    stamp(connection, tables.REVISION)


def upgrade(connection: Connection, found: str | None, name: str) -> None:
    """Upgrade revision by revision from `found` to this build's; `name` is the database's, for messages.

    Raises ConfigError if the schema is a newer build's, or one of before `BASELINE`."""
    from alembic import command

    config = alembic_config(connection)
    if found is not None:
        _check_known(config, found, name)
    command.upgrade(config, "head")


def alembic_config(connection: Connection) -> "Config":
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _check_known(config: "Config", revision: str, name: str) -> None:
    from alembic.script import ScriptDirectory

    if revision in {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}:
        return
    if revision.isdigit() and int(revision) < int(BASELINE):
        raise ConfigError(
            f"{name}: its schema {revision} is of a former build; this one upgrades stores from {BASELINE} on: take a "
            "new directory or database, or upgrade it first with the commit that docs/stack.md names under Upgrade"
        )
    raise ConfigError(
        f"{name}: its schema {revision} is of a newer build; this one knows up to {tables.REVISION}: "
        "run the newer build again, or restore a backup from before its first start"
    )


def stamp(connection: Connection, revision: str) -> None:
    """Record that the schema is at `revision`, and change nothing else."""
    _version.create(connection, checkfirst=True)
    connection.execute(delete(_version))
    connection.execute(insert(_version).values(version_num=revision))
