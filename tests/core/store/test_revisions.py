"""The revisions of the schema follow one another, and make what the models say."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, NullPool, create_engine, text
from stores import KINDS, server_database

from core.store.database import schema, tables
from core.store.database.postgres import DRIVER

EARLIER = tuple(map(str, range(1, int(tables.REVISION))))


def test_the_models_are_of_the_newest_revision_and_each_follows_one() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        scripts = ScriptDirectory.from_config(schema.alembic_config(connection))
    steps = [script.revision for script in scripts.walk_revisions()]
    assert scripts.get_heads() == [tables.REVISION]
    assert steps == [tables.REVISION, *reversed(EARLIER)]


@pytest.mark.parametrize("revision", [*EARLIER, tables.REVISION])
def test_a_revision_says_what_it_locks(revision: str) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        scripts = ScriptDirectory.from_config(schema.alembic_config(connection))
    assert "locked" in (scripts.get_revision(revision).doc or "") + (scripts.get_revision(revision).longdoc or "")


@pytest.fixture(params=KINDS)
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Engine, Engine]]:
    """Yield engines of two empty databases."""
    if request.param == "sqlite":
        yield create_engine(f"sqlite:///{tmp_path / 'a.db'}"), create_engine(f"sqlite:///{tmp_path / 'b.db'}")
        return
    with server_database() as one, server_database() as other:
        urls = [settings.url.replace("postgresql://", DRIVER) for settings in (one, other)]
        yield create_engine(urls[0], poolclass=NullPool), create_engine(urls[1], poolclass=NullPool)


def test_the_revisions_make_what_the_models_say(engines: tuple[Engine, Engine]) -> None:
    migrated, made = engines
    with migrated.connect() as connection:
        command.upgrade(schema.alembic_config(connection), "head")
        connection.commit()
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
        by_revisions = details(connection)
    with made.connect() as connection:
        schema.create(connection)
        assert details(connection) == by_revisions
    for engine in engines:
        engine.dispose()


def details(connection: Connection) -> set[tuple[Any, ...]]:
    """Return all that the database knows of its schema, except the order of columns."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(text("SELECT name, replace(sql, '\"', '') FROM sqlite_master"))
        return {(row[0], re.sub(r"\s+(?=[,)])", "", " ".join((row[1] or "").split()))) for row in rows}
    columns = text(
        "SELECT table_name, column_name, data_type, is_nullable, collation_name, column_default "
        "FROM information_schema.columns WHERE table_schema = 'public'"
    )
    indices = text("SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    return {tuple(row) for query in (columns, indices) for row in connection.execute(query)}
