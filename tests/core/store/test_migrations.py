"""Databases of earlier builds are migrated to this build's schema without losing anything."""

import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
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
from core.ids import Namespace, PolicyName, PolicyRef, SessionId, Version, base_ref
from core.operations.fleet import Switches
from core.ports import TopicPartition
from core.settings import PostgresSettings
from core.store import SqlStore, open_postgres, open_sqlite
from core.store.database import schema, tables
from core.store.database.migrate import migrate_postgres
from core.store.database.postgres import DRIVER
from core.store.work import Work

LEFT_BY_REVISION_1 = Path(__file__).parents[1] / "store_1.sql"
EARLIER = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15")
NAMESPACE = Namespace("default")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


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


def earlier_file(path: Path, revision: str = "1") -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(LEFT_BY_REVISION_1.read_text())
    if revision != "1":
        with to_file(path) as connection:
            schema.stamp(connection, "1")
            command.upgrade(schema.alembic_config(connection), revision)
            connection.commit()


def earlier_database(settings: PostgresSettings, tmp_path: Path, revision: str) -> None:
    """Make a database of this revision with the rows of an earlier file."""
    earlier_file(tmp_path / "earlier.db")
    with connected(settings) as target, to_file(tmp_path / "earlier.db") as source:
        command.upgrade(schema.alembic_config(target), "1")
        copy(source, target)
        command.upgrade(schema.alembic_config(target), revision)


def copy(source: Connection, target: Connection) -> None:
    theirs, ours = MetaData(), MetaData()
    theirs.reflect(source)
    ours.reflect(target)
    target.execute(text("DELETE FROM meta"))
    for name, table in theirs.tables.items():
        if name in ours.tables and (rows := [dict(row) for row in source.execute(select(table)).mappings()]):
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


@pytest.mark.parametrize("revision", EARLIER)
def test_a_file_of_each_earlier_revision_is_upgraded_when_it_is_opened(tmp_path: Path, revision: str) -> None:
    earlier_file(tmp_path / "store.db", revision)
    for _ in range(2):
        store = open_sqlite(tmp_path / "store.db")
        with store.read() as connection:
            assert schema.found_revision(connection) == tables.REVISION
            assert connection.execute(select(tables.meta.c.value)).scalar() == "2", "builds without revisions refuse it"
        store.close()
    store = open_sqlite(tmp_path / "store.db")
    check_all_is_there(store)
    store.close()


@pytest.mark.parametrize("first", ["1", EARLIER[-1]])
def test_a_database_of_each_earlier_revision_is_refused_until_it_is_upgraded_by_onward_migrate(
    server: PostgresSettings, tmp_path: Path, first: str
) -> None:
    """Whoever is at one of them is there by the steps to it, and goes on by those after it, each of which is taken."""
    earlier_database(server, tmp_path, "1")
    for revision in EARLIER[: EARLIER.index(first) + 1]:
        with connected(server) as connection:
            command.upgrade(schema.alembic_config(connection), revision)
        with pytest.raises(ConfigError, match=rf"postgres\.url .*its schema is {revision}, .*run `onward migrate`"):
            open_postgres(server)
    assert migrate_postgres(server) == (first, tables.REVISION)
    assert migrate_postgres(server) == (tables.REVISION, tables.REVISION)
    store = open_postgres(server)
    check_all_is_there(store)
    store.close()


def test_an_empty_database_is_refused_until_it_is_migrated(server: PostgresSettings) -> None:
    with pytest.raises(ConfigError, match=r"its schema is none yet, .*run `onward migrate`"):
        open_postgres(server)
    assert migrate_postgres(server) == (None, tables.REVISION)
    open_postgres(server).close()


def test_a_build_that_was_killed_while_it_made_the_tables_left_revision_1(tmp_path: Path) -> None:
    earlier_file(tmp_path / "store.db")
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        connection.execute("DELETE FROM meta")
        connection.commit()
    store = open_sqlite(tmp_path / "store.db")
    check_all_is_there(store)
    store.close()


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


def test_an_upgrade_of_a_file_happens_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier_file(tmp_path / "store.db")

    def dump() -> list[str]:
        with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
            return list(connection.iterdump())

    before = dump()
    with monkeypatch.context() as patch:
        fail_at(patch, "policies_by_state")
        with pytest.raises(KeyboardInterrupt):
            open_sqlite(tmp_path / "store.db")
    assert dump() == before
    store = open_sqlite(tmp_path / "store.db")
    check_all_is_there(store)
    store.close()


def test_an_upgrade_of_a_database_that_was_cut_short_is_finished_by_the_next(
    server: PostgresSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_database(server, tmp_path, "1")
    with monkeypatch.context() as patch:
        fail_at(patch, "policies_by_state")
        with pytest.raises(KeyboardInterrupt):
            migrate_postgres(server)
    assert migrate_postgres(server) == ("2", tables.REVISION)
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


@pytest.mark.parametrize("index", ["policies_by_state", "none"], ids=["cut short", "whole"])
def test_a_migration_keeps_nobody_out_once_it_is_over_however_late_its_session_ends(
    server: PostgresSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    earlier_database(server, tmp_path, "1")
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


def test_a_migration_does_not_make_others_wait_for_one_that_holds_a_table(
    server: PostgresSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_database(server, tmp_path, "1")
    with connected(server) as connection, monkeypatch.context() as patch:
        patch.setattr("core.store.database.migrate._LOCK_TIMEOUT_S", 0.05)
        connection.execute(text("SELECT * FROM offsets"))  # its transaction goes on
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            migrate_postgres(server)
    assert migrate_postgres(server) == ("1", tables.REVISION)


@pytest.mark.parametrize("kind", KINDS)
def test_versions_of_before_there_were_policies_are_of_the_base_one(kind: str, tmp_path: Path) -> None:
    with ExitStack() as opened:
        if kind == "sqlite":
            earlier_file(tmp_path / "store.db", "6")
            with to_file(tmp_path / "store.db") as connection:
                leave_words(connection)
            store = open_sqlite(tmp_path / "store.db")
        else:
            settings = opened.enter_context(server_database())
            earlier_database(settings, tmp_path, "6")
            with connected(settings) as connection:
                leave_words(connection)
            migrate_postgres(settings)
            store = open_postgres(settings)
        opened.callback(store.close)
        check_all_of_base(store)


def leave_words(connection: Connection) -> None:
    """Write rows as revision 6 had them: bare numbers, in columns and in records."""
    for table in ("orders", "switches", "experiments"):
        connection.execute(text(f"DELETE FROM {table}"))
    pinned = msgspec.msgpack.encode({"pinned": 1, "held": [2]})
    canary = {"experiment_id": "e", "cluster": "local", "canary": 2, "control": 1, "share": 0.1, "salt": "s"}
    rows: dict[str, dict[str, object]] = {
        "orders": {"order_id": 9, "kind": "pin", "version": 1, "why": "w", "by": "b", "created_at": 0},
        "switches": {"record": pinned},
        "experiments": {
            "experiment_id": "e",
            "canary": 2,
            "started_at": 0,
            "record": msgspec.msgpack.encode(canary | {"started_at": NOW}),
        },
    }
    for table, row in rows.items():
        values = {"cluster": "local", **row}
        names = ", ".join(f'"{name}"' for name in values)
        places = ", ".join(f":{name}" for name in values)
        connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({places})"), values)
    connection.commit()


def check_all_of_base(store: SqlStore) -> None:
    acme = PolicyName("acme")
    with store.work() as work:
        (order,) = work.orders.unfinished("local")
        assert order.version == base_ref(1)
        assert work.orders.unfinished("local", acme) == []
        assert work.fleet.switches("local") == Switches(pinned=base_ref(1), held=(base_ref(2),))
        assert work.fleet.switches("local", acme) == Switches()
        running = work.experiments.running("local")
        assert running is not None
        assert (running.canary, running.control) == (base_ref(2), base_ref(1))
        assert work.experiments.running("local", acme) is None
        lineage = work.policies.states_of_lineage(base_ref(2))
        assert [version for version, _ in lineage] == [base_ref(2), base_ref(1)]
        # Another policy's versions are other versions, with no other schema.
        assert work.policies.allocate(NOW, acme) == PolicyRef(acme, Version(1))
        assert work.policies.state_of(PolicyRef(acme, Version(1))) == "allocated"
        assert work.policies.state_of(base_ref(1)) == "live"
        assert work.releases.live("local", acme) is None


# ------------------------------------------------------------------------------------------ going back, and refusals


def test_a_database_goes_back_step_by_step_and_forth_again(server: PostgresSettings, tmp_path: Path) -> None:
    earlier_database(server, tmp_path, tables.REVISION)
    with connected(server) as connection:
        config = schema.alembic_config(connection)
        with connection.begin():
            Work(connection).offsets.take_over("scorer", [TopicPartition(Topic.TURNS, 7)])  # null to an earlier build
        for revision in reversed(EARLIER):
            command.downgrade(config, revision)
        assert shape(connection) == shape_of_revision_1()
        assert connection.execute(text("SELECT value FROM meta")).scalar() == "1"
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


def shape_of_revision_1() -> dict[str, set[str]]:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.connection.driver_connection.executescript(LEFT_BY_REVISION_1.read_text())  # type: ignore[union-attr]
        schema.stamp(connection, "1")
        return {name: parts for name, parts in shape(connection).items() if name != "sqlite_sequence"}


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
    with pytest.raises(ConfigError, match=r"store\.db: its schema 99 is of a newer build; this one knows up to"):
        open_sqlite(tmp_path / "store.db")


# ------------------------------------------------------------------------------------------ models and revisions


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
