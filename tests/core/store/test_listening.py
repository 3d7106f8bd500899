"""A store on a server wakes those who wait for changes of releases, whichever process made them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from stores import database

from core.ids import base_ref
from core.operations.fleet import ReplicaStatus, ReplicaTarget
from core.settings import PostgresSettings
from core.store import SqlStore, open_postgres, open_sqlite
from core.store.work import Work

NOW = datetime(2026, 7, 6, tzinfo=UTC)
STATUS = ReplicaStatus(
    name="a", cluster="local", url="", state="ready", serving=base_ref(1), pinnable=(), heartbeat_at=NOW
)
CHANGES: dict[str, Callable[[Work], object]] = {
    "a target": lambda work: work.fleet.put_target(
        "local", ReplicaTarget(name="a", lane="live", serve=base_ref(1), hold=())
    ),
    "a status": lambda work: work.fleet.put_status(STATUS),
    "an engine that goes": lambda work: work.fleet.forget("a"),
    "an order": lambda work: work.orders.give("local", "pin", base_ref(1), "why", "operator", NOW),
}


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[PostgresSettings]:
    with database("postgres", tmp_path) as home:
        assert home.postgres is not None
        yield home.postgres


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.005)


def listener(store: SqlStore) -> threading.Event:
    woken = threading.Event()
    store.wake(woken)
    wait_for(lambda: store.wakes)
    assert woken.wait(120), "there may have been changes before it listened"
    woken.clear()
    return woken


def test_each_change_wakes_and_a_heartbeat_does_not(settings: PostgresSettings) -> None:
    with closing(open_postgres(settings)) as here, closing(open_postgres(settings)) as there:
        woken = listener(here)
        for name, change in CHANGES.items():
            with there.work() as work:
                change(work)
            assert woken.wait(120), name
            woken.clear()
        with there.work() as work:
            work.fleet.put_status(STATUS, is_news=False)
        assert not woken.wait(0.5)


def test_what_did_not_come_about_wakes_nobody(settings: PostgresSettings) -> None:
    with closing(open_postgres(settings)) as store:
        woken = listener(store)

        def fail() -> None:
            with store.work() as work:
                CHANGES["an order"](work)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert not woken.wait(0.5)


def test_who_comes_when_it_listens_already_is_woken_too(settings: PostgresSettings) -> None:
    """The connection may be there before the first one who waits is known."""
    with closing(open_postgres(settings)) as store:
        listener(store)
        late = threading.Event()
        store.wake(late)
        assert late.is_set()


def test_a_connection_that_was_lost_is_made_again_and_who_waits_looks(settings: PostgresSettings) -> None:
    with closing(open_postgres(settings)) as store, psycopg.connect(settings.url, autocommit=True) as admin:
        woken = listener(store)
        ended = admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' "
            "AND datname = current_database()"
        ).fetchall()
        assert ended == [(True,)]
        assert woken.wait(120)
        woken.clear()
        wait_for(lambda: store.wakes)
        with store.work() as work:
            CHANGES["an order"](work)
        assert woken.wait(120)


def test_a_file_says_that_it_wakes_nobody(tmp_path: Path) -> None:
    with closing(open_sqlite(tmp_path / "store.db")) as store:
        store.wake(threading.Event())
        assert not store.wakes
