"""Databases of earlier builds are migrated to this build's schema without losing anything."""

import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command, op
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, NullPool, create_engine, insert, select, text
from stores import KINDS, server_database

from core.errors import ConfigError, Fenced, StoreUnavailable
from core.events import Topic
from core.ids import Namespace, SessionId, base_ref
from core.ports import TopicPartition
from core.settings import PostgresSettings
from core.store import SqlStore, open_postgres, open_sqlite
from core.store.database import schema, tables
from core.store.database.migrate import migrate_postgres
from core.store.database.postgres import DRIVER

LEFT_BY_THE_BASELINE = Path(__file__).parents[1] / f"store_{schema.BASELINE}.sql"
REVISIONS = ("16", "17", "18")
NAMESPACE = Namespace("default")
PLANTED = "99"
PLANTED_REVISION = """'A revision that only a test has: nothing is locked.'

import sqlalchemy as sa
from alembic import op

revision, down_revision = "99", "18"


def upgrade() -> None:
    op.add_column("offsets", sa.Column("planted", sa.Integer))
    op.create_index("planted", "offsets", ["planted"])


def downgrade() -> None:
    op.drop_index("planted", "offsets")
    op.drop_column("offsets", "planted")
"""


@contextmanager
def connected(settings: PostgresSettings) -> Iterator[Connection]:
    engine = create_engine(settings.url.replace("postgresql://", DRIVER), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def to_file(path: Path) -> Iterator[Connection]:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def server() -> Iterator[PostgresSettings]:
    """Yield a database without any tables."""
    with server_database() as settings:
        yield settings


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this build have one more revision, to which stores are upgraded."""
    shutil.copytree(schema.MIGRATIONS, tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "migrations" / "versions" / "0099_planted.py").write_text(PLANTED_REVISION)
    monkeypatch.setattr(schema, "MIGRATIONS", tmp_path / "migrations")
    monkeypatch.setattr(tables, "REVISION", PLANTED)


def earlier_file(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(LEFT_BY_THE_BASELINE.read_text())


def earlier_database(settings: PostgresSettings, tmp_path: Path) -> None:
    """Make a database of the baseline with the rows of an earlier file."""
    earlier_file(tmp_path / "earlier.db")
    with connected(settings) as target, to_file(tmp_path / "earlier.db") as source:
        command.upgrade(schema.alembic_config(target), schema.BASELINE)
        copy(source, target)


def copy(source: Connection, target: Connection) -> None:
    theirs, ours = MetaData(), MetaData()
    theirs.reflect(source)
    ours.reflect(target)
    target.execute(text("DELETE FROM meta"))
    for name, table in theirs.tables.items():
        if (
            name != "alembic_version"
            and name in ours.tables
            and (rows := [dict(row) for row in source.execute(select(table)).mappings()])
        ):
            target.execute(insert(ours.tables[name]), rows)
    target.commit()


def check_all_is_there(store: SqlStore) -> None:
    with store.work() as work:
        (first,) = work.turns.of_session(NAMESPACE, SessionId("s"))
        (second,) = work.turns.of_session(NAMESPACE, SessionId("t"))
        assert work.turns.find_transcript(NAMESPACE, ["d0"]) == second
        assert work.turns.find_transcript(NAMESPACE, ["d0"], SessionId("s")) == first
        assert [said.name for said in work.outcomes.of_turns([first.inference_id])] == ["rejected"] * 2
        emitted = [reward for _, reward in work.rewards.after(NAMESPACE, 0, 10)]
        assert [(reward.session_id, reward.revision) for reward in emitted] == [("s", 0), ("t", 0), ("u", 0), ("s", 1)]
        waiting = {n: [reward for _, reward in work.rewards.unpublished([n], 10)] for n in range(4)}
        assert waiting == {0: [emitted[1]], 1: [emitted[2], emitted[3]], 2: [], 3: []}
        owned = work.offsets.take_over("scorer", [TopicPartition(Topic.TURNS, n) for n in range(5)])
        assert [owned[source] for source in sorted(owned)] == [(2, 2), (2, 6), (2, 0), (2, 0), (1, None)]
        assert work.releases.live("local") == base_ref(1)
        assert [policy.version for policy in work.policies.candidates()] == [base_ref(2)]
        assert work.policies.allocate(first.received_at) == base_ref(4)
        with pytest.raises(Fenced, match="epoch 7 is over"):
            work.leases.fence("release:local", 7, first.received_at, 1.0)
        assert work.rewards.of_turns([first.inference_id]) == [emitted[0], emitted[3]]
        assert work.archived.reached() == {}


# ------------------------------------------------------------------------------------------ upgrading


@pytest.mark.parametrize("more", [False, True], ids=["this build", "one more revision"])
def test_a_file_that_the_baseline_left_is_opened_and_upgraded(
    tmp_path: Path, request: pytest.FixtureRequest, more: bool
) -> None:
    if more:
        request.getfixturevalue("planted")
    earlier_file(tmp_path / "store.db")
    for _ in range(2):
        store = open_sqlite(tmp_path / "store.db")
        with store.read() as connection:
            assert schema.found_revision(connection) == tables.REVISION
        store.close()
    store = open_sqlite(tmp_path / "store.db")
    check_all_is_there(store)
    store.close()


def test_a_database_that_the_baseline_left_is_opened(server: PostgresSettings, tmp_path: Path) -> None:
    earlier_database(server, tmp_path)
    assert migrate_postgres(server) == (schema.BASELINE, tables.REVISION)
    store = open_postgres(server)
    check_all_is_there(store)
    store.close()


@pytest.mark.usefixtures("planted")
def test_an_earlier_database_is_refused_until_it_is_upgraded_by_onward_migrate(
    server: PostgresSettings, tmp_path: Path
) -> None:
    earlier_database(server, tmp_path)
    with pytest.raises(ConfigError, match=rf"postgres\.url .*its schema is {schema.BASELINE}, .*run `onward migrate`"):
        open_postgres(server)
    assert migrate_postgres(server) == (schema.BASELINE, PLANTED)
    assert migrate_postgres(server) == (PLANTED, PLANTED)
    store = open_postgres(server)
    check_all_is_there(store)
    store.close()


def test_an_empty_database_is_refused_until_it_is_migrated(server: PostgresSettings) -> None:
    with pytest.raises(ConfigError, match=r"its schema is none yet, .*run `onward migrate`"):
        open_postgres(server)
    assert migrate_postgres(server) == (None, tables.REVISION)
    open_postgres(server).close()


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("number", range(10))  # one pair in seven met the lock while it changed the file's journal
def test_several_who_open_an_earlier_file_at_once_all_find_it_upgraded(tmp_path: Path, number: int) -> None:
    earlier_file(tmp_path / "store.db")
    start = threading.Barrier(3)

    def open_it(_: int) -> SqlStore:
        start.wait()
        return open_sqlite(tmp_path / "store.db")

    with ThreadPoolExecutor() as threads:
        stores = list(threads.map(open_it, range(3)))
    check_all_is_there(stores[number % 3])
    for store in stores:
        store.close()


def fail_at(patch: pytest.MonkeyPatch, index: str) -> None:
    create = op.create_index

    def create_index(name: str, *arguments: Any, **options: Any) -> None:
        if name == index:
            raise KeyboardInterrupt
        create(name, *arguments, **options)

    patch.setattr(op, "create_index", create_index)


@pytest.mark.usefixtures("planted")
def test_an_upgrade_of_a_file_happens_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier_file(tmp_path / "store.db")

    def dump() -> list[str]:
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            return list(connection.iterdump())

    before = dump()
    with monkeypatch.context() as patch:
        fail_at(patch, "planted")
        with pytest.raises(KeyboardInterrupt):
            open_sqlite(tmp_path / "store.db")
    assert dump() == before
    store = open_sqlite(tmp_path / "store.db")
    check_all_is_there(store)
    store.close()


@pytest.mark.usefixtures("planted")
def test_an_upgrade_of_a_database_that_was_cut_short_is_finished_by_the_next(
    server: PostgresSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_database(server, tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, "planted")
        with pytest.raises(KeyboardInterrupt):
            migrate_postgres(server)
    assert migrate_postgres(server) == (REVISIONS[-1], PLANTED)
    store = open_postgres(server)
    check_all_is_there(store)
    store.close()


def test_one_migration_runs_at_a_time(server: PostgresSettings) -> None:
    with connected(server) as connection:
        connection.execute(text("SELECT pg_advisory_lock(1869510500, 4)"))
        with pytest.raises(StoreUnavailable, match="another migration runs"):
            migrate_postgres(server)
        connection.execute(text("SELECT pg_advisory_unlock(1869510500, 4)"))  # its session may end later than it closes
    assert migrate_postgres(server) == (None, tables.REVISION)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("index", ["planted", "none"], ids=["cut short", "whole"])
def test_a_migration_keeps_nobody_out_once_it_is_over_however_late_its_session_ends(
    server: PostgresSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    earlier_database(server, tmp_path)
    sessions: list[psycopg.Connection[Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "close", lambda session: sessions.append(session))
        fail_at(patch, index)
        with nullcontext() if index == "none" else pytest.raises(KeyboardInterrupt):
            migrate_postgres(server)
    assert migrate_postgres(server)[1] == tables.REVISION
    assert sessions
    for session in sessions:
        session.close()


@pytest.mark.usefixtures("planted")
def test_a_migration_does_not_make_others_wait_for_one_that_holds_a_table(
    server: PostgresSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_database(server, tmp_path)
    with connected(server) as connection, monkeypatch.context() as patch:
        patch.setattr("core.store.database.migrate._LOCK_TIMEOUT_S", 0.05)
        connection.execute(text("SELECT * FROM offsets"))  # its transaction goes on
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            migrate_postgres(server)
    assert migrate_postgres(server) == (REVISIONS[-1], PLANTED)


# ------------------------------------------------------------------------------------------ going back, and refusals


@pytest.mark.usefixtures("planted")
def test_a_database_goes_back_and_forth_again(server: PostgresSettings, tmp_path: Path) -> None:
    earlier_database(server, tmp_path)
    with connected(server) as connection:
        before = shape(connection)
        connection.commit()
        migrate_postgres(server)
        config = schema.alembic_config(connection)
        command.downgrade(config, schema.BASELINE)
        assert shape(connection) == before
        connection.commit()
    migrate_postgres(server)
    store = open_postgres(server)
    check_all_is_there(store)
    store.close()
    with connected(server) as connection:
        command.downgrade(schema.alembic_config(connection), "base")
        assert shape(connection) == {"alembic_version": {"version_num"}}


def shape(connection: Connection) -> dict[str, set[str]]:
    """Return the names of each table's columns and indices."""
    found = MetaData()
    found.reflect(connection)
    return {
        table.name: {column.name for column in table.c} | {str(index.name) for index in table.indexes}
        for table in found.tables.values()
    }


FORMER = r"its schema 1 is of a former build; this one upgrades stores from 16 on: take a new directory or database"


@pytest.mark.parametrize("knew_revisions", [False, True])
def test_a_file_of_a_former_schema_is_refused_and_stays_as_it_is(tmp_path: Path, knew_revisions: bool) -> None:
    """The first builds knew no revisions, and left a table `meta`."""
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("CREATE TABLE meta (key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL)")
        if knew_revisions:
            connection.execute("CREATE TABLE alembic_version (version_num VARCHAR PRIMARY KEY)")
            connection.execute("INSERT INTO alembic_version VALUES ('1')")
        connection.commit()
        before = list(connection.iterdump())
        with pytest.raises(ConfigError, match=rf"store\.db: {FORMER}"):
            open_sqlite(tmp_path / "store.db")
        assert list(connection.iterdump()) == before


def test_a_database_of_a_former_schema_is_refused(server: PostgresSettings) -> None:
    migrate_postgres(server)
    with connected(server) as connection, connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '1'"))
    with pytest.raises(ConfigError, match=r"its schema is 1, this build's"):
        open_postgres(server)
    with pytest.raises(ConfigError, match=FORMER):
        migrate_postgres(server)


def test_a_newer_schema_is_refused(server: PostgresSettings, tmp_path: Path) -> None:
    migrate_postgres(server)
    with connected(server) as connection, connection.begin():
        connection.execute(text("UPDATE alembic_version SET version_num = '99'"))
    with pytest.raises(ConfigError, match=r"its schema is 99, this build's"):
        open_postgres(server)
    with pytest.raises(ConfigError, match=r"its schema 99 is of a newer build; this one knows up to"):
        migrate_postgres(server)
    open_sqlite(tmp_path / "store.db").close()
    with to_file(tmp_path / "store.db") as connection:
        schema.stamp(connection, "99")
        connection.commit()
    next_step = "run the newer build again, or restore a backup from before its first start"
    with pytest.raises(ConfigError, match=rf"store\.db: its schema 99 is of a newer build; .*: {next_step}"):
        open_sqlite(tmp_path / "store.db")


# ------------------------------------------------------------------------------------------ models and revisions


def test_the_models_are_of_the_newest_revision_and_each_follows_one() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        scripts = ScriptDirectory.from_config(schema.alembic_config(connection))
    steps = [script.revision for script in scripts.walk_revisions()]
    assert scripts.get_heads() == [tables.REVISION]
    changes = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    assert f"revision {tables.REVISION}" in " ".join(changes.split()), "whoever upgrades is told"
    assert steps == [*reversed(REVISIONS)]
    assert steps[-1] == schema.BASELINE


@pytest.mark.parametrize("revision", REVISIONS)
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
