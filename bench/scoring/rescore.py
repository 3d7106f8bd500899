"""A past of 100,000 turns scored anew in one command (`onward rescore`), and the live ledger with as many turns open.

    python -m bench rescore [TURNS]

The command is compared with a reader that only decodes the past, and with the time that it took users; the ledger is
measured in events per second, and memory. Each turn has an outcome five seconds later. The command scores the past
twice, under the spec in force and under the new one. The ledger's part takes turns whose waits run, and then
outcomes of any of them, in batches of 64 into SQLite."""

import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import msgspec
import psutil

import onward
from bench.log import traffic
from bench.log.traffic import outcome_of
from bench.table import Row, report
from core.events import Completion, Event, Outcome, Topic
from core.ports import Record
from core.reward_spec import load_reward_spec
from core.store import SqlStore, open_sqlite
from onward.replays.history import open_history
from onward.replays.rescore import compare_specs
from onward.wiring.foundation import open_foundation
from scoring.ledger.transaction import LedgerTransaction

TURNS = 100_000
PER_S = 8.0  # turns that the demo's users cause
SAID_AFTER_S = 5.0
BATCH = 64
APPENDED = 512  # at once
START = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = Path(onward.__file__).parent / "rewards.toml"
GOAL_DECODED = 0.1
GOAL_REAL_TIME = 10.0
GOAL_FLAT = 0.5


def turns(count: int) -> Iterator[Completion]:
    for number, turn in enumerate(traffic.turns(count)):
        yield msgspec.structs.replace(turn, received_at=START + timedelta(seconds=number / PER_S))


def said_of(turn: Completion) -> Outcome:
    at = turn.received_at + timedelta(seconds=SAID_AFTER_S)
    return msgspec.structs.replace(outcome_of(turn), observed_at=at, received_at=at)


def past(count: int) -> Iterator[Event]:
    """Yield turns and outcomes in order of arrival."""
    waiting: list[Completion] = []
    for turn in turns(count):
        while waiting and said_of(waiting[0]).received_at <= turn.received_at:
            yield said_of(waiting.pop(0))
        waiting.append(turn)
        yield turn
    yield from map(said_of, waiting)


def fill(directory: Path, count: int) -> None:
    foundation = open_foundation(directory)
    events = past(count)
    while part := list(islice(events, APPENDED)):
        foundation.log.append_blocking(Topic.TURNS, part)
    foundation.close()


def rescored(count: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-rescore-") as place:
        directory = Path(place)
        fill(directory, count)
        new = directory / "new.toml"
        new.write_text(SPEC.read_text())
        decoded = decoded_per_s(directory, count)
        figures = compare_specs(directory, new, None, None, None)
    assert figures["turns"] == count
    scored = 2 * count / figures["seconds"]
    yield Row("turns and outcomes decoded", decoded, "turns/s")
    yield Row.at_least("scored anew", scored, "turns/s", "decoded", scored / decoded, GOAL_DECODED)
    both = count / figures["seconds"]
    yield Row.at_least("the command, both specs", both, "turns/s", "users", both / PER_S, GOAL_REAL_TIME)
    yield Row(f"the command, {count:,} turns", figures["seconds"], "s")


def decoded_per_s(directory: Path, count: int) -> float:
    foundation = open_foundation(directory)
    began_s = time.perf_counter()
    read = sum(len(records) for records in open_history(foundation, Topic.TURNS).read())
    took_s = time.perf_counter() - began_s
    foundation.close()
    assert read == 2 * count
    return count / took_s


# ---------------------------------------------------------------------------------------------- open turns


class Ledger:
    def __init__(self, store: SqlStore) -> None:
        self._store, self._spec, self._offset = store, load_reward_spec(SPEC), 0

    def take(self, events: Sequence[Event]) -> float:
        """Take events and return how many per second."""
        began_s = time.perf_counter()
        for start in range(0, len(events), BATCH):
            records = [self._record(event) for event in events[start : start + BATCH]]
            with self._store.work() as work:
                LedgerTransaction(self._spec).take(work, records)
        return len(events) / (time.perf_counter() - began_s)

    def _record(self, event: Event) -> Record:
        self._offset += 1
        return Record(topic=Topic.TURNS, partition=0, offset=self._offset, appended_at=START, raw=b"", event=event)


def opened(count: int) -> Iterator[Row]:
    """Measure the ledger with open turns, all of one moment, so that no wait ends meanwhile."""
    rng, part = random.Random(0), count // 10
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-open-") as place,
        closing(open_sqlite(Path(place) / "store.db")) as store,
    ):
        ledger, said = Ledger(store), [msgspec.structs.replace(turn, received_at=START) for turn in turns(count)]
        before = psutil.Process().memory_info().rss
        rates = [ledger.take(said[start : start + part]) for start in range(0, count, part)]
        grown = psutil.Process().memory_info().rss - before
        outcomes = [msgspec.structs.replace(outcome_of(turn), received_at=START) for turn in rng.sample(said, part)]
        spoken = ledger.take(outcomes)
    yield Row(f"the first {part:,} turns opened", rates[0], "events/s")
    ratio = rates[-1] / rates[0]
    yield Row.at_least(f"the last of {count:,}", rates[-1], "events/s", "the first", ratio, GOAL_FLAT)
    yield Row(f"outcomes of {count:,} open turns", spoken, "events/s", "the first turns", spoken / rates[0])
    yield Row(f"memory for {count:,} open turns", grown / 2**20, "MiB")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    report("rescore", [*rescored(count), *opened(count)])


if __name__ == "__main__":
    main()
