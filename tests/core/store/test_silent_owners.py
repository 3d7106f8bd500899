"""An owner that stopped between two messages keeps its locks, and no timeout of the server ends it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from stores import database

from core.errors import StoreUnavailable
from core.events import Topic
from core.ports import TopicPartition
from core.settings import PostgresSettings
from core.store import SqlStore, open_postgres
from core.store.work import Work

_STATEMENT_S = 1.0
_SOURCE = TopicPartition(Topic.TURNS, 0)
Take = Callable[[Work], object]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[PostgresSettings]:
    with database("postgres", tmp_path) as home:
        assert home.postgres is not None
        yield home.postgres


@contextmanager
def silent(settings: PostgresSettings, statement: bytes) -> Iterator[psycopg.Connection]:
    """Yield a session that has executed `statement` in a transaction but has not ended its pipeline."""
    timeout_ms = round(_STATEMENT_S * 1000)
    options = f"-c statement_timeout={timeout_ms} -c idle_in_transaction_session_timeout={timeout_ms}"
    connection = psycopg.connect(settings.url, options=options)
    raw = connection.pgconn
    raw.enter_pipeline_mode()
    for each in (b"BEGIN", statement):
        raw.send_query_params(each, None)
    raw.send_flush_request()
    raw.flush()
    for _ in range(2):
        while raw.get_result() is not None:  # it is done
            pass
    try:
        yield connection
    finally:
        connection.close()


def until_taken(store: SqlStore, take: Take) -> None:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        with suppress(StoreUnavailable), store.work() as work:
            assert take(work)
            return
    pytest.fail("never")


@pytest.mark.parametrize(
    ("statement", "take"),
    [
        pytest.param(
            b"INSERT INTO offsets VALUES ('g', 'onward.turns', 0, 7, 1)",
            lambda work: work.offsets.take_over("g", [_SOURCE]),
            id="partition",
        ),
        pytest.param(
            b"INSERT INTO leases VALUES ('l', 'silent', 1, 0)",
            lambda work: work.leases.acquire("l", "heir", datetime.now(UTC), 10),
            id="lease",
        ),
    ],
)
def test_who_wants_the_place_of_one_that_fell_silent_ends_it(
    settings: PostgresSettings, statement: bytes, take: Take
) -> None:
    store = open_postgres(settings.model_copy(update={"statement_timeout_s": _STATEMENT_S}))
    began_s = time.monotonic()
    try:
        with silent(settings, statement) as zombie:
            until_taken(store, take)
            assert time.monotonic() - began_s >= _STATEMENT_S, "it was waited for first, by this one or by the machine"
            with pytest.raises(psycopg.OperationalError):
                zombie.execute("SELECT 1")
    finally:
        store.close()


def until_older(settings: PostgresSettings, reader: "psycopg.Connection[Any]", age_s: float) -> None:
    """Wait until the reader's transaction has this age."""
    age = "SELECT EXTRACT(epoch FROM clock_timestamp() - xact_start) FROM pg_stat_activity WHERE pid = %s"
    with psycopg.connect(settings.url, autocommit=True) as watcher:
        while watcher.execute(age, (reader.info.backend_pid,)).fetchone()[0] < age_s:  # type: ignore[index]
            time.sleep(0.05)


def test_one_who_reads_is_left_alone(settings: PostgresSettings) -> None:
    """A rescoring or an export may read for as long as it takes."""
    store = open_postgres(settings.model_copy(update={"statement_timeout_s": _STATEMENT_S}))
    try:
        with psycopg.connect(settings.url) as reader:
            reader.execute("SELECT * FROM offsets")
            until_older(settings, reader, 2 * _STATEMENT_S)
            with store.work() as work:
                work.offsets.take_over("g", [_SOURCE])
            assert reader.execute("SELECT 1").fetchone() == (1,)
    finally:
        store.close()
