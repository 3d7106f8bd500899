"""A server that is unreachable, slow, silent or ends sessions: StoreUnavailable is raised in good time.

Afterwards the store works again."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DataError
from stores import admin, database, server_database

from core.errors import ConfigError, StoreUnavailable
from core.settings import PostgresSettings
from core.store import SqlStore, open_postgres
from core.store.database.migrate import migrate_postgres

_WAIT_S = 30.0


class Wire:
    """A proxy between the store and the server, which can fall silent or break connections."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def fall_silent(self) -> None:
        self._flows.clear()

    def speak(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Break all open connections; new ones can be made."""
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.speak()
        self._listener.close()
        self.cut()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[PostgresSettings]:
    with database("postgres", tmp_path) as home:
        assert home.postgres is not None
        yield home.postgres


@contextmanager
def opened(settings: PostgresSettings, **changes: object) -> Iterator[SqlStore]:
    store = open_postgres(settings.model_copy(update=changes))
    yield store
    store.close()


@contextmanager
def wired(settings: PostgresSettings, **changes: object) -> Iterator[tuple[SqlStore, Wire]]:
    at, name = settings.url.rsplit("/", 1)
    host, port = at.rsplit("@", 1)[1].split(":")
    wire = Wire((host, int(port)))
    url = f"postgresql://onward@127.0.0.1:{wire.port}/{name}"
    with opened(settings, url=url, connect_timeout_s=2, statement_timeout_s=2, **changes) as store:
        yield store, wire
    wire.close()


def ask(store: SqlStore, query: str = "SELECT 1") -> object:
    with store.begin() as connection:
        return connection.execute(text(query)).scalar()


def seconds(do: Callable[[], object]) -> float:
    """Return how long `do` takes to raise StoreUnavailable."""
    start_s = time.monotonic()
    with pytest.raises(StoreUnavailable):
        do()
    return time.monotonic() - start_s


# ------------------------------------------------------------------------------------------ away


def test_a_server_that_is_not_there_is_named(settings: PostgresSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"postgresql://onward:secret@127.0.0.1:{port}/onward"
    with pytest.raises(StoreUnavailable, match=rf"postgres\.url 127\.0\.0\.1:{port}/onward") as caught:
        open_postgres(PostgresSettings(url=url))
    assert "secret" not in str(caught.value)


def test_a_url_that_is_none_is_a_settings_error_and_does_not_leak() -> None:
    for wrong in (
        "secret",
        "mysql://onward:secret@127.0.0.1/onward",
        "postgresql://onward:secret@127.0.0.1/o?secret=1",
    ):
        with pytest.raises(ConfigError, match=r"postgres\.url is no connection string") as caught:
            open_postgres(PostgresSettings(url=wrong))
        assert "secret" not in str(caught.value)


def test_sessions_that_the_server_ended_are_replaced(settings: PostgresSettings) -> None:
    """An administrator's shutdown ends them, between two transactions and within one."""
    with opened(settings) as store:
        assert ask(store) == 1
        end_sessions(settings)
        assert ask(store) == 1

        def amid() -> None:
            with store.begin() as connection:
                connection.execute(text("SELECT 1"))
                end_sessions(settings)
                connection.execute(text("SELECT 1"))

        assert seconds(amid) < _WAIT_S
        assert ask(store) == 1


def end_sessions(settings: PostgresSettings) -> None:
    name = settings.url.rsplit("/", 1)[1]
    admin(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")


def test_a_broken_connection_is_replaced(settings: PostgresSettings) -> None:
    with wired(settings) as (store, wire):
        assert ask(store) == 1
        wire.cut()
        assert ask(store) == 1


def test_a_silent_server_is_not_waited_for(settings: PostgresSettings) -> None:
    """Neither a new transaction nor an open one waits, where the server's own timeouts cannot help."""
    with wired(settings) as (store, wire):
        assert ask(store) == 1
        wire.fall_silent()
        assert seconds(lambda: ask(store)) < _WAIT_S, "twice the patience for a connection: an old one, and a new one"
        wire.speak()
        assert ask(store) == 1

        def amid() -> None:
            with store.begin() as connection:
                connection.execute(text("SELECT 1"))
                wire.fall_silent()
                connection.execute(text("SELECT 1"))

        assert seconds(amid) < _WAIT_S
        wire.speak()
        assert ask(store) == 1


# ------------------------------------------------------------------------------------------ slow, full, busy


def test_a_statement_may_take_so_long(settings: PostgresSettings) -> None:
    with opened(settings, statement_timeout_s=1.0) as store:
        assert seconds(lambda: ask(store, "SELECT pg_sleep(120)")) < _WAIT_S
        assert ask(store) == 1


def test_a_transaction_that_does_nothing_does_not_keep_its_locks(settings: PostgresSettings) -> None:
    """Its process may be suspended: others wait no longer for it than for a statement."""
    with opened(settings, statement_timeout_s=1.0) as store, opened(settings) as other:

        def sleep() -> None:
            with store.begin() as connection:
                connection.execute(text("LOCK TABLE turns"))
                assert ask(other, "SELECT count(*) FROM turns") == 0
                connection.execute(text("SELECT 1"))

        assert seconds(sleep) < _WAIT_S


def test_who_finds_no_free_connection_does_not_wait_for_ever(settings: PostgresSettings) -> None:
    with opened(settings, pool_size=1, connect_timeout_s=1.0) as store, store.begin() as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(StoreUnavailable, match="all connections to the store are in use"):
            ask(store)


def test_of_two_who_wait_for_each_other_one_goes_on(settings: PostgresSettings) -> None:
    with opened(settings) as store:
        ask(store, "INSERT INTO meta VALUES ('a', ''), ('b', '') RETURNING 1")
        both, failed = threading.Barrier(2), []

        def swap(first: str, second: str) -> None:
            try:
                with store.begin() as connection:
                    connection.execute(text(f"UPDATE meta SET value = 'x' WHERE key = '{first}'"))
                    both.wait(_WAIT_S)
                    connection.execute(text(f"UPDATE meta SET value = 'x' WHERE key = '{second}'"))
            except StoreUnavailable as error:
                failed.append(str(error))

        threads = [threading.Thread(target=swap, args=pair) for pair in (("a", "b"), ("b", "a"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_WAIT_S)
        assert len(failed) == 1
        assert "deadlock" in failed[0]


# ------------------------------------------------------------------------------------------ what is asked of it


def test_what_is_read_cannot_be_written(settings: PostgresSettings) -> None:
    with opened(settings) as store:
        with pytest.raises(StoreUnavailable, match="read-only"), store.read() as connection:
            connection.execute(text("DELETE FROM turns"))
        ask(store, "INSERT INTO meta VALUES ('a', '') RETURNING 1")


def test_text_that_it_cannot_hold_is_the_callers_mistake(settings: PostgresSettings) -> None:
    with opened(settings) as store, pytest.raises(DataError, match="NUL"), store.begin() as connection:
        connection.execute(text("SELECT :text"), {"text": "a\0b"})


def test_it_is_told_who_is_connected_unless_the_url_says(settings: PostgresSettings) -> None:
    query = "SELECT current_setting('application_name') || ' ' || current_setting('work_mem')"
    store = open_postgres(settings, "onward score")
    assert ask(store, query) == "onward score 4MB"
    store.close()
    with opened(settings, url=settings.url + "?application_name=mine&options=-c%20work_mem%3D8MB") as store:
        assert ask(store, query) == "mine 8MB"
        assert ask(store, "SELECT current_setting('statement_timeout')") == "30s"


def test_names_are_ordered_as_sqlite_does_whatever_the_servers_locale() -> None:
    with server_database("template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'") as settings:
        migrate_postgres(settings)
        with opened(settings) as store, store.begin() as connection:
            names = ["b", "B", "a-b", "ab", "a_b", "ä", "A"]
            for name in names:
                connection.execute(text("INSERT INTO meta VALUES (:name, '')"), {"name": name})
            rows = connection.execute(text("SELECT key FROM meta WHERE value = '' ORDER BY key"))
            assert [row.key for row in rows] == sorted(names)
