"""The cost of an upgrade to processes that go on working: a million turns of revision 1 to this build, on Postgres.

    make services && python -m bench migration [TURNS]

Meanwhile a writer of the earlier build moves its offsets and inserts turns, outcomes and rewards, a transaction each
time, and a reader reads turns and rewards; their longest waits are what an upgrade does to them. The locks of tables
that keep out writers or readers are sampled, so that one of less than a few milliseconds may be missed."""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median, quantiles
from typing import Any

import psycopg
from alembic import command
from sqlalchemy import NullPool, create_engine

from bench.services import empty_database, settle
from bench.store.full_store import TURNS, fill
from bench.table import Row, report
from core.settings import PostgresSettings
from core.store.database import schema
from core.store.database.migrate import migrate_postgres
from core.store.database.postgres import DRIVER

COUNT = 1_000_000
VERSIONS = 500
BEFORE_S = 5.0
PAUSE_S = 0.002
LOCKS = """
SELECT relname, mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation JOIN pg_stat_activity USING (pid)
WHERE application_name = 'onward migrate' AND datname = current_database() AND granted AND relkind = 'r'
  AND relnamespace = 'public'::regnamespace
"""
KEEPS_OUT = {
    "ShareLock": "writers",
    "ShareRowExclusiveLock": "writers",
    "ExclusiveLock": "writers",
    "AccessExclusiveLock": "all",
}
WRITES = (  # the offsets first, as every owner of a partition does it
    "UPDATE offsets SET next_offset = %s",
    "INSERT INTO turns SELECT 'new-' || %s, session_id, namespace, turn_index, parent_id, user_id, workload, purpose, "
    "received_at, policy_version, finish_reason, trainable, learn, transcript_digest, record FROM turns LIMIT 1",
    "INSERT INTO outcomes SELECT namespace, 'new-' || %s, inference_id, session_id, name, content_digest, received_at, "
    "NULL, withdrawn, record FROM outcomes LIMIT 1",
    "INSERT INTO rewards (inference_id, spec, revision, namespace, session_id, value, final, decided_at, sequence, "
    "published, record) SELECT 'new-' || %s, spec, revision, namespace, session_id, value, final, decided_at, "
    "(SELECT max(sequence) + 1 FROM rewards), true, record FROM rewards LIMIT 1",
)
READS = (
    "SELECT record FROM turns WHERE inference_id = 'new-' || %s",
    "SELECT record FROM rewards WHERE inference_id = 'new-' || %s",
)


class Repeated:
    """Work that a thread repeats, and how long each repetition took."""

    def __init__(self, settings: PostgresSettings, work: Callable[[psycopg.Connection[Any], int], None]) -> None:
        self.took: list[tuple[float, float]] = []  # when it began, seconds
        self._connection = psycopg.connect(settings.url)
        self._work = work
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self._done = self._threads.submit(self._run)

    def _run(self) -> None:
        number = 0
        while not self._over.wait(PAUSE_S):
            number += 1
            start_s = time.monotonic()
            self._work(self._connection, number)
            self.took.append((start_s, time.monotonic() - start_s))

    def stop(self) -> None:
        """Stop the work. Raises what ended it before."""
        self._over.set()
        self._threads.shutdown()
        self._connection.close()
        self._done.result()

    def took_ms(self, since_s: float, until_s: float) -> list[float]:
        """Return the times of the repetitions that lie in the interval, if only in part."""
        return [1000 * took_s for at_s, took_s in self.took if at_s + took_s >= since_s and at_s <= until_s]


def do_all(statements: tuple[str, ...], connection: psycopg.Connection[Any], number: int) -> None:
    with connection.transaction():
        for statement in statements:
            connection.execute(statement.encode(), [number])


class Locks:
    """The seconds for which each lock was seen held."""

    def __init__(self) -> None:
        self.held_s: dict[tuple[str, str], float] = defaultdict(float)
        self._last_s = time.monotonic()

    def sample(self, connection: psycopg.Connection[Any], _number: int) -> None:
        found = connection.execute(LOCKS).fetchall()
        connection.commit()
        now_s = time.monotonic()
        for table, mode in found:
            self.held_s[table, mode] += now_s - self._last_s
        self._last_s = now_s


@contextmanager
def at_revision_1(turns: int) -> Iterator[PostgresSettings]:
    with empty_database() as settings:
        engine = create_engine(settings.url.replace("postgresql://", DRIVER), poolclass=NullPool)
        with engine.connect() as connection:
            command.upgrade(schema.alembic_config(connection), "1")
            fill(connection, turns // TURNS, VERSIONS)
            connection.exec_driver_sql("INSERT INTO offsets VALUES ('scorer', 'onward.turns', 0, 0, 1)")
            connection.commit()
        settle(settings)
        yield settings


def rows_of(settings: PostgresSettings, turns: int) -> Iterator[Row]:
    locks = Locks()
    writer = Repeated(settings, partial(do_all, WRITES))
    reader = Repeated(settings, partial(do_all, READS))
    watcher = Repeated(settings, locks.sample)
    time.sleep(BEFORE_S)
    begin_s = time.monotonic()
    found, made = migrate_postgres(settings)
    end_s = time.monotonic()
    for thread in (writer, reader, watcher):
        thread.stop()
    yield Row(f"from revision {found} to {made}, {turns:,} turns", end_s - begin_s, "s")
    samples = watcher.took_ms(begin_s, end_s)
    yield Row("the locks were looked at every, median", (end_s - begin_s) * 1000 / len(samples), "ms")
    for (table, mode), held_s in sorted(locks.held_s.items()):
        if mode in KEEPS_OUT:
            yield Row(f"{table}: {KEEPS_OUT[mode]} kept out ({mode})", 1000 * held_s, "ms")
    for name, thread in (("writer", writer), ("reader", reader)):
        before, meanwhile = thread.took_ms(begin_s - BEFORE_S, begin_s), thread.took_ms(begin_s, end_s)
        for label, figure in (("median", median), ("p99", percentile_99), ("longest", max)):
            value, floor = figure(meanwhile), figure(before)
            yield Row(f"a {name}'s transaction meanwhile, {label}", value, "ms", "before the upgrade", value / floor)


def percentile_99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with at_revision_1(turns) as settings:
        rows = list(rows_of(settings, turns))
    report("migration", rows)


if __name__ == "__main__":
    main()
