"""The store on a PostgreSQL server, for mode `distributed`.

No wait for it is without end. The server ends slow statements and idle transactions; if it is reachable and answers
nothing at all, we close the connection ourselves."""

import math
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import Connection, Engine, create_engine, event, text

from core.errors import ConfigError
from core.settings import PostgresSettings
from core.store.database import schema, tables
from core.store.database.connections import SqlStore
from core.store.database.listening import Listening

T = TypeVar("T")

DRIVER = "postgresql+psycopg://"
_CHECK_S = 0.1  # how often a wait looks whether it is over


class PatientConnection(psycopg.Connection[Any]):
    """A connection that closes itself when the server was silent for `patience_s`.

    No pool hands it out again then."""

    patience_s = math.inf

    def wait(self, gen: Generator[Any, Any, T], interval: float = _CHECK_S, timeout: float | None = None) -> T:
        if timeout is None:
            return super().wait(self._impatient(gen), interval)
        return super().wait(self._impatient(gen), interval, timeout)

    def _impatient(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass on the driver's generator `gen`, which yields what it waits for and is sent what is ready, or 0."""
        silent_since_s = time.monotonic()
        try:
            waits_for = next(gen)
            while True:
                ready = yield waits_for
                if ready:
                    silent_since_s = time.monotonic()
                elif time.monotonic() - silent_since_s > self.patience_s:
                    self.close()
                    raise psycopg.OperationalError(f"no answer for {self.patience_s:g} s")
                waits_for = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


class PostgresStore(SqlStore):
    """A store whose server announces changes; the first thread that waits for them opens a connection for that."""

    def __init__(self, engine: Engine, name: str, for_reads: Mapping[str, Any], url: str) -> None:
        super().__init__(engine, name, for_reads)
        self._url = url
        self._lock = threading.Lock()
        self._listening: Listening | None = None

    def wake(self, woken: threading.Event) -> None:
        """Set `woken` at every change, as the port describes."""
        with self._lock:
            if self._listening is None:
                self._listening = Listening(self._url)
            self._listening.wake(woken)

    @property
    def wakes(self) -> bool:
        listening = self._listening
        return listening is not None and listening.hears

    def close(self) -> None:
        """Close all connections; nobody is woken any more."""
        with self._lock:
            listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
        super().close()


def connect(settings: PostgresSettings, application_name: str) -> SqlStore:
    """Connect to the server, as `core.store.open_postgres` describes."""
    engine = _engine(settings, application_name)
    name = place_of(settings)
    for_reads = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    store = PostgresStore(engine, name, for_reads, conninfo(settings, application_name, ""))
    with ExitStack() as undo:
        undo.callback(store.close)
        with store.read() as connection:
            found = schema.found_revision(connection) or "none yet"
        if found != tables.REVISION:
            raise ConfigError(f"{name}: its schema is {found}, this build's {tables.REVISION}: run `onward migrate`")
        undo.pop_all()
    return store


def _engine(settings: PostgresSettings, application_name: str) -> Engine:
    timeout_ms = to_ms(settings.statement_timeout_s)
    url = conninfo(
        settings,
        application_name,
        f"-c statement_timeout={timeout_ms} -c idle_in_transaction_session_timeout={timeout_ms} -c jit=off",
    )
    engine = create_engine(
        DRIVER,
        creator=lambda: _connect(url),
        pool_size=settings.pool_size,
        max_overflow=0,
        pool_timeout=settings.connect_timeout_s,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
    )

    def expect_quick_answer(connection: PatientConnection | None, *_: object) -> None:
        if connection is not None:  # it may be closed already
            connection.patience_s = settings.connect_timeout_s

    def expect_result(connection: Connection) -> None:
        driver_connection = connection.connection.driver_connection
        assert isinstance(driver_connection, PatientConnection)
        driver_connection.patience_s = settings.statement_timeout_s + settings.connect_timeout_s

    event.listen(engine, "connect", expect_quick_answer)
    event.listen(engine, "checkin", expect_quick_answer)  # for the next one's ping
    event.listen(engine, "begin", expect_result)
    return engine


def _connect(url: str) -> PatientConnection:
    connection = PatientConnection.connect(url)
    connection.adapters.register_dumper(list, ListBinaryDumper)  # as text, arrays take five times as long to make
    return connection


def version_and_skew(store: SqlStore) -> tuple[str, float]:
    """Return the server's version string, and how many seconds its clock is ahead of ours."""
    with store.read() as connection:
        before_s = time.time()
        row = connection.execute(text("SELECT version(), extract(epoch FROM clock_timestamp())::float8")).one()
        after_s = time.time()
    return str(row[0]), float(row[1]) - (before_s + after_s) / 2


def conninfo(settings: PostgresSettings, application_name: str, options: str) -> str:
    given = _parsed(settings)
    return make_conninfo(
        settings.url,
        application_name=str(given.get("application_name") or application_name),
        connect_timeout=math.ceil(settings.connect_timeout_s),
        options=f"{given.get('options') or ''} {options}".strip(),
    )


def place_of(settings: PostgresSettings) -> str:
    """Return where the database is, without its password, for messages."""
    given = _parsed(settings)
    return f"postgres.url {given.get('host') or 'here'}:{given.get('port') or 5432}/{given.get('dbname') or ''}"


def _parsed(settings: PostgresSettings) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(settings.url))
    except psycopg.ProgrammingError as error:
        raise ConfigError("postgres.url is no connection string: write postgresql://USER@HOST:PORT/DATABASE") from error


def to_ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)
