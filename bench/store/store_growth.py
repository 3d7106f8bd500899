"""The time of the queries of the API, the console, the scorer and the learner as the store grows.

    make services && python -m bench store_growth [LARGEST [postgres|sqlite]]

One database per size, each ten times the one before, from a thousand sessions of three turns to LARGEST (a million)
in Postgres, or in a file each, as the embedded mode has it. The sizes take turns, query by query, over keys drawn
from all that there are: what is measured is the growth, at the median and at the 99th percentile, and not other load
of the machine."""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import text

from bench.services import migrated_database, settle, store_on
from bench.store.full_store import (
    COMMON,
    NAMESPACE,
    OPEN,
    PARTITIONS,
    START,
    TURNS,
    fill,
    inference_id,
    outcome_id,
    session_id,
)
from bench.table import Row, report
from core.ids import InferenceId, OutcomeId, SessionId
from core.store import SqlStore, open_sqlite
from core.store.work import View
from scoring.ledger.pages import load_sessions

SMALLEST = 1000
LARGEST = 1_000_000
VERSIONS = 500
ROUNDS = 400
WARM_UP = 20
BATCH = 64  # records that the scorer takes at once
GOAL = 2.0


@dataclass(frozen=True)
class World:
    sessions: int
    store: SqlStore

    @property
    def turns(self) -> int:
        return self.sessions * TURNS

    def inference(self) -> InferenceId:
        return inference_id(random.randrange(self.turns))

    def session(self) -> SessionId:
        return session_id(random.randrange(self.sessions))

    def outcome(self) -> OutcomeId:
        return outcome_id(random.randrange(self.turns))

    def digest(self) -> str:
        return f"digest-{random.randrange(self.turns // 10) * 10 + 1}"


Query = Callable[[View, World], object]


def show_session(view: View, world: World) -> object:
    said = view.turns.of_session(NAMESPACE, world.session())
    ids = [each.inference_id for each in said]
    return view.outcomes.of_turns(ids), view.rewards.of_turns(ids)


def score(view: View, world: World) -> object:
    """Look up what the scorer needs for a batch of outcomes."""
    keys = view.ledger.sessions_of([world.inference() for _ in range(BATCH)])
    identities = [(NAMESPACE, OutcomeId(f"new-{number}")) for number in range(BATCH)]
    return load_sessions(view, set(keys.values())), view.ledger.known_outcomes(identities)


def wait(view: View, world: World) -> object:
    until = START + timedelta(seconds=world.turns - OPEN + 50)
    return view.ledger.due_turns(dict.fromkeys(range(PARTITIONS), until), 512)


QUERIES: dict[str, Query] = {
    "feedback's turn": lambda view, w: view.turns.get(NAMESPACE, w.inference()),
    "feedback's id": lambda view, w: view.outcomes.get(NAMESPACE, w.outcome()),
    "what superseded it": lambda view, w: view.outcomes.successor(NAMESPACE, w.outcome()),
    "a session, whole": show_session,
    "a transcript's turn": lambda view, w: view.turns.find_transcript(NAMESPACE, ["unknown", w.digest()]),
    "a transcript that many share": lambda view, w: view.turns.find_transcript(NAMESPACE, ["unknown", COMMON]),
    "a transcript in a session": lambda view, w: view.turns.find_transcript(
        NAMESPACE, ["unknown", COMMON], w.session()
    ),
    "a page of 100 rewards": lambda view, w: view.rewards.after(NAMESPACE, random.randrange(w.turns - 100), 100),
    "the last reward": lambda view, w: view.rewards.last_sequence(NAMESPACE),
    "the console's newest 100 rewards": lambda view, w: view.rewards.latest(NAMESPACE, w.turns + 1, 100),
    "a page before them": lambda view, w: view.rewards.latest(NAMESPACE, random.randrange(200, w.turns), 100),
    "curves of 3,000 turns": lambda view, _: view.curves.worth(NAMESPACE, 3000),
    "behaviour in 300 turns": lambda view, _: view.curves.conduct(NAMESPACE, 300),
    "the release timeline": lambda view, _: view.releases.after(view.releases.last_sequence() - 100, 100),
    "a scorer's outbox": lambda view, w: view.rewards.unpublished([1, 3], 512),
    f"{BATCH} outcomes' sessions": score,
    "waits that are over": wait,
    f"{BATCH} turns of a training batch": lambda view, w: view.turns.get_many([w.inference() for _ in range(BATCH)]),
}


@contextmanager
def filled(kind: str, sessions: int) -> Iterator[World]:
    with ExitStack() as stack:
        if kind == "postgres":
            settings = stack.enter_context(migrated_database())
            store = stack.enter_context(store_on(settings))
        else:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-growth-"))
            store = stack.enter_context(closing(open_sqlite(Path(directory) / "store.db")))
        with store.begin() as connection:
            fill(connection, sessions, VERSIONS)
        if kind == "postgres":
            settle(settings)
        yield World(sessions, store)


def took_ms(query: Query, world: World) -> float:
    with world.store.read() as connection:
        connection.execute(text("SELECT 1"))  # the transaction's beginning is not the query's
        view = View(connection)
        start_s = time.perf_counter()
        query(view, world)
        return 1000 * (time.perf_counter() - start_s)


def measure(query: Query, worlds: list[World]) -> list[tuple[float, float]]:
    """Return (median, 99th percentile) in each world, in ms; the worlds take turns."""
    times: list[list[float]] = [[] for _ in worlds]
    for number in range(ROUNDS + WARM_UP):
        for step in range(len(worlds)):
            which = (number + step) % len(worlds)
            spent = took_ms(query, worlds[which])
            if number >= WARM_UP:
                times[which].append(spent)
    return [(statistics.median(each), statistics.quantiles(each, n=100)[98]) for each in times]


def compared(name: str, figures: list[tuple[float, float]], worlds: list[World]) -> Iterator[Row]:
    least = f"{worlds[0].sessions:,} sessions"
    for place, percentile in enumerate(("p50", "p99")):
        floor = figures[0][place]
        yield Row(f"{name}, {percentile} at {least}", floor, "ms")
        for world, figure in zip(worlds[1:], figures[1:], strict=True):
            value = figure[place]
            yield Row.at_most(f"{name}, {percentile} at {world.sessions:,}", value, "ms", least, value / floor, GOAL)


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else LARGEST
    kind = sys.argv[2] if len(sys.argv) > 2 else "postgres"
    sizes = [SMALLEST]
    while sizes[-1] * 10 <= largest:
        sizes.append(sizes[-1] * 10)
    with ExitStack() as stack:
        worlds = [stack.enter_context(filled(kind, size)) for size in sizes]
        rows = [row for name, query in QUERIES.items() for row in compared(name, measure(query, worlds), worlds)]
    report("store_growth" if kind == "postgres" else "store_growth_embedded", rows)


if __name__ == "__main__":
    main()
