"""How long the queries of the API, the console and the scorer take on Postgres as what was said and scored grows.

    make services && python -m bench.store_growth [LARGEST]

One database per size, each ten times the one before, from a thousand sessions to LARGEST (by default 100,000). A
session has three turns; a turn has an outcome, a reward and the scorer's rows; one in ten begins as many others do. The
sizes take turns, query by query, over keys drawn from all that there are: what is measured is the growth, at the median
and at the 99th percentile, and not what else the machine does.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
from sqlalchemy import Connection, text

from bench.embedded_log import turn
from bench.table import Row, report
from core.events import Outcome, Reward
from core.ids import InferenceId, Namespace, OutcomeId, SessionId
from core.settings import PostgresSettings
from core.store import SqlStore, open_postgres, rewards, turns
from core.store.migrate import migrate_postgres
from deploy.services.stack import Stack
from scoring import ledger

SMALLEST = 1000
LARGEST = 100_000
TURNS = 3  # of a session
ROUNDS = 400
WARM_UP = 20
PARTITIONS = 4
OPEN = 500  # turns whose waits run, the youngest
BATCH = 64  # records that the scorer takes at once
GOAL = 2.0
NAMESPACE = Namespace("default")
START = datetime(2026, 1, 1, tzinfo=UTC)

_MICROS = f"{int(START.timestamp()) * 10**6}::bigint + n * 1000000::bigint"
_ID = "lpad(to_hex(n), 12, '0') || '-inference'"
_SESSION = f"'session-' || n / {TURNS}"
ROWS = {  # n: a turn, from 0
    "turns": f"{_ID}, {_SESSION}, 'default', n % {TURNS}, NULL, NULL, 'write', 'turn', {_MICROS}, 1, 'stop', true, "
    "true, CASE WHEN n % 10 = 0 THEN 'hello' ELSE 'digest-' || n END, :turn",
    "outcomes": f"'default', 'outcome-' || n, {_ID}, NULL, 'accepted', 'c', {_MICROS}, NULL, false, :outcome",
    "rewards": f"{_ID}, 'spec', 0, 'default', {_SESSION}, 0.5, true, {_MICROS}, n + 1, n < :turns - {OPEN}, :reward, "
    f"n % {PARTITIONS}",
    "ledger_turns": f"{_ID}, {_SESSION}, 'default', 'write', 'turn', n % {TURNS}, false, n % {PARTITIONS}, {_MICROS}, "
    f"CASE WHEN n >= :turns - {OPEN} THEN {_MICROS} END, n < :turns - {OPEN}, 0, 0.5, {_MICROS}, 0",
    "ledger_outcomes": f"'default', 'outcome-' || n, {_ID}, {_SESSION}, n, :outcome",
    "ledger_sessions": f"'default', 'session-' || n, {_MICROS}, NULL",
}


@dataclass(frozen=True)
class World:
    sessions: int
    store: SqlStore

    @property
    def turns(self) -> int:
        return self.sessions * TURNS

    def inference(self) -> InferenceId:
        return InferenceId(f"{random.randrange(self.turns):012x}-inference")

    def session(self) -> SessionId:
        return SessionId(f"session-{random.randrange(self.sessions)}")

    def digest(self) -> str:
        return f"digest-{random.randrange(self.turns // 10) * 10 + 1}"


Query = Callable[[Connection, World], object]


def show_session(connection: Connection, world: World) -> object:
    said = turns.get_session_turns(connection, NAMESPACE, world.session())
    ids = [each.inference_id for each in said]
    return turns.get_turn_outcomes(connection, ids), rewards.get_rewards(connection, ids)


def score(connection: Connection, world: World) -> object:
    """What the scorer looks up for a batch of outcomes."""
    keys = ledger.find_sessions(connection, [world.inference() for _ in range(BATCH)])
    identities = [(NAMESPACE, OutcomeId(f"new-{number}")) for number in range(BATCH)]
    return ledger.load_sessions(connection, keys), ledger.known_outcomes(connection, identities)


def wait(connection: Connection, world: World) -> object:
    until = START + timedelta(seconds=world.turns - OPEN + 50)
    return ledger.due_turns(connection, dict.fromkeys(range(PARTITIONS), until), 512)


QUERIES: dict[str, Query] = {
    "feedback's turn": lambda c, w: turns.get_turn(c, NAMESPACE, w.inference()),
    "feedback's id": lambda c, w: turns.get_outcome(c, NAMESPACE, OutcomeId(f"outcome-{random.randrange(w.turns)}")),
    "what superseded it": lambda c, w: turns.get_successor(c, NAMESPACE, OutcomeId("outcome-7")),
    "a session, whole": show_session,
    "a transcript's turn": lambda c, w: turns.find_transcript(c, NAMESPACE, ["unknown", w.digest()]),
    "a transcript that many share": lambda c, w: turns.find_transcript(c, NAMESPACE, ["unknown", "hello"]),
    "a transcript in a session": lambda c, w: turns.find_transcript(c, NAMESPACE, ["unknown", "hello"], w.session()),
    "a page of 100 rewards": lambda c, w: rewards.list_rewards(c, NAMESPACE, random.randrange(w.turns), 100),
    "the last reward": lambda c, w: rewards.last_sequence(c, NAMESPACE),
    "a scorer's outbox": lambda c, w: rewards.unpublished(c, [1, 3], 512),
    f"{BATCH} outcomes' sessions": score,
    "waits that are over": wait,
    "turns of a training batch": lambda c, w: turns.get_turns(c, [w.inference() for _ in range(BATCH)]),
}


@contextmanager
def filled(server: str, sessions: int) -> Iterator[World]:
    name = f"onward_bench_{sessions}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        admin.execute(f"CREATE DATABASE {name}".encode())
    settings = PostgresSettings(url=f"{server.rsplit('/', 1)[0]}/{name}", statement_timeout_s=3600)
    migrate_postgres(settings)
    store = open_postgres(settings, "onward bench")
    fill(store, sessions)
    yield World(sessions, store)
    store.close()
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def fill(store: SqlStore, sessions: int) -> None:
    records = {
        "turn": msgspec.msgpack.encode(turn()),
        "outcome": msgspec.msgpack.encode(outcome()),
        "reward": msgspec.msgpack.encode(reward()),
    }
    for table, row in ROWS.items():
        count = sessions if table == "ledger_sessions" else sessions * TURNS
        values = {"turns": sessions * TURNS} | records
        with store.begin() as connection:
            query = text(f"INSERT INTO {table} SELECT {row} FROM generate_series(0, {count - 1}) n")
            connection.execute(query, {name: value for name, value in values.items() if f":{name}" in row})
    with store.begin() as connection:
        connection.execute(text("ANALYZE"))


def outcome() -> Outcome:
    return Outcome(
        outcome_id=OutcomeId("outcome"),
        inference_id=InferenceId("inference"),
        session_id=None,
        namespace=NAMESPACE,
        name="accepted",
        value=True,
        observed_at=START,
        received_at=START,
    )


def reward() -> Reward:
    return Reward(
        inference_id=InferenceId("inference"),
        session_id=SessionId("session"),
        namespace=NAMESPACE,
        workload="write",
        revision=0,
        value=0.5,
        components={"accepted": 0.5},
        outcome_ids=(OutcomeId("outcome"),),
        first_outcome_at=START,
        last_outcome_at=START,
        why="accepted",
        spec="spec",
        final=True,
        decided_at=START,
    )


def took_ms(query: Query, world: World) -> float:
    with world.store.read() as connection:
        connection.exec_driver_sql("SELECT 1")  # the transaction's beginning is not the query's
        start = time.perf_counter()
        query(connection, world)
        return 1000 * (time.perf_counter() - start)


def measure(query: Query, worlds: list[World]) -> list[tuple[float, float]]:
    """(median, 99th percentile) in each world, in ms; the worlds take turns."""
    times: list[list[float]] = [[] for _ in worlds]
    for number in range(ROUNDS + WARM_UP):
        for step in range(len(worlds)):
            which = (number + step) % len(worlds)
            spent = took_ms(query, worlds[which])
            if number >= WARM_UP:
                times[which].append(spent)
    return [(statistics.median(each), statistics.quantiles(each, n=100)[98]) for each in times]


def compared(name: str, figures: list[tuple[float, float]], worlds: list[World]) -> Iterator[Row]:
    for place, percentile in enumerate(("p50", "p99")):
        least = figures[0][place]
        yield Row(f"{name}, {percentile} at {worlds[0].sessions:,} sessions", least, "ms")
        for world, figure in zip(worlds[1:], figures[1:], strict=True):
            value = figure[place]
            yield Row.at_most(
                f"{name}, {percentile} at {world.sessions:,}",
                value,
                "ms",
                f"{worlds[0].sessions:,} sessions",
                value / least,
                GOAL,
            )


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else LARGEST
    sizes = [SMALLEST]
    while sizes[-1] * 10 <= largest:
        sizes.append(sizes[-1] * 10)
    server = Stack().addresses()["postgres"]
    with ExitStack() as stack:
        worlds = [stack.enter_context(filled(server, size)) for size in sizes]
        rows = [row for name, query in QUERIES.items() for row in compared(name, measure(query, worlds), worlds)]
    report("store_growth", rows)


if __name__ == "__main__":
    main()
