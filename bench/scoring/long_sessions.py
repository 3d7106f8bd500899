"""The cost of a turn and its outcome to the scorer, by how many turns its session has.

    python -m bench long_sessions [TURNS]

Contenders score as many turns each, in sessions of 10, 100, 1,000 and 10,000, one session after another, in batches
of 64 events and, as in a session with a person, of two, into SQLite on disk; they take turns, and medians count.
Each turn continues the one before it, its messages are as many of the latest as fit a context, and its outcome
arrives after the next one. Processor time."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec

import onward
from bench.log import traffic
from bench.table import Row, interleave, report
from core.events import Completion, Event, Topic
from core.ids import new_session_id
from core.ports import Record
from core.reward_spec import load_reward_spec
from core.store import open_sqlite
from scoring.ledger.session_cache import SessionCache
from scoring.ledger.transaction import LedgerTransaction

TURNS = 10_000
SESSIONS = (10, 100, 1000, 10_000)
ROUNDS = 3
EVERY_S = 5.0
MESSAGES = 9
START = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = Path(onward.__file__).parent / "rewards.toml"
GOAL = 1.5


def past(turns: int, each: int) -> Iterator[Event]:
    """Yield sessions of `each` turns, one after another."""
    before: Completion | None = None
    for number in range(turns):
        at = START + timedelta(seconds=number * EVERY_S)
        if number % each == 0:
            if before is not None:
                yield said_of(before, at)
            before = None
        turn = traffic.one_turn(new_session_id() if before is None else before.session_id, before)
        turn = msgspec.structs.replace(turn, received_at=at, messages=turn.messages[-MESSAGES:])
        yield turn
        if before is not None:
            yield said_of(before, at)
        before = turn
    assert before is not None
    yield said_of(before, at)


def said_of(turn: Completion, at: datetime) -> Event:
    return msgspec.structs.replace(traffic.outcome_of(turn), observed_at=at, received_at=at)


def scored(turns: int, each: int, batch: int) -> float:
    """Return microseconds a turn."""
    records = [
        Record(topic=Topic.TURNS, partition=0, offset=offset, appended_at=START, raw=b"", event=event)
        for offset, event in enumerate(past(turns, each))
    ]
    spec, shelf = load_reward_spec(SPEC), SessionCache()
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-long-") as place,
        closing(open_sqlite(Path(place) / "store.db")) as store,
    ):
        began_s, rewards = time.process_time(), 0
        for start in range(0, len(records), batch):
            book = LedgerTransaction(spec, shelf)
            with store.work() as work:
                book.take(work, records[start : start + batch])
            shelf.put(book.sessions)
            rewards += len(book.rewards)
        took_s = time.process_time() - began_s
    assert rewards >= turns
    return took_s / turns * 1e6


def rows(turns: int, batch: int) -> Iterator[Row]:
    sessions = [each for each in SESSIONS if each <= turns]
    found = interleave({str(each): partial(scored, turns, each, batch) for each in sessions}, ROUNDS)
    shortest = found[str(sessions[0])]
    how = f"a turn and its outcome, by {batch} events"
    yield Row(f"{how}, sessions of {sessions[0]}", shortest, "µs")
    for each in sessions[1:]:
        took = found[str(each)]
        against = f"sessions of {sessions[0]}"
        yield Row.at_most(f"{how}, of {each:,}", took, "µs", against, took / shortest, GOAL)


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    report("long_sessions", [*rows(turns, 64), *rows(turns, 2)])


if __name__ == "__main__":
    main()
