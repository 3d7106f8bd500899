"""The log returns under load: the spool is drained, and appends become direct again."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from made_events import ended
from waiting import wait_for

from core.errors import LogUnavailable
from core.events import Event, SessionEnded, Topic
from core.ports import Position
from ingest.spool.handover import AppendBarrier
from ingest.spool.spool import SpoolingLog
from ingest.sqlite.log import SqliteEventLog

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TAKES_S = 0.01  # an append, over a network
WRITERS = 16


class FarLog(SqliteEventLog):
    """A log as slow as a remote cluster, which can also be made unavailable."""

    away = False
    appends: list[tuple[Topic, int]]

    def __init__(self, path: Path) -> None:
        self.appends = []
        super().__init__(path, 2, 0.01)

    async def append(self, topic: Topic, event: Event) -> Position:
        await asyncio.sleep(TAKES_S)
        self._require()
        return await super().append(topic, event)

    def append_blocking(self, topic: Topic, events: Sequence[Event]) -> list[Position]:
        time.sleep(TAKES_S)
        self._require()
        self.appends.append((topic, len(events)))
        return super().append_blocking(topic, events)

    def _require(self) -> None:
        if self.away:
            raise LogUnavailable("away")


@contextmanager
def far_log(directory: Path) -> Iterator[tuple[SpoolingLog, FarLog]]:
    inner = FarLog(directory / "log.db")
    log = SpoolingLog(inner, directory / "spool", 64 << 20)
    yield log, inner
    log.close()


def by_writer(log: SpoolingLog) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    reader = log.reader([Topic.TURNS])
    while records := reader.poll(1000, 0.0):
        for record in records:
            assert isinstance(record.event, SessionEnded)
            writer, _, number = record.event.session_id.partition("-")
            found[writer].append(int(number))
    reader.close()
    return found


class Writers:
    """Writers that never pause; every second one is a thread."""

    def __init__(self, log: SpoolingLog) -> None:
        self.counts = [0] * WRITERS
        self._log, self._over = log, threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(0, WRITERS, 2)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._all_async())))

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        while not self._over.is_set():
            self._log.append_blocking(Topic.TURNS, [ended(f"{number}-{self.counts[number]}")])
            self.counts[number] += 1

    async def _all_async(self) -> None:
        await asyncio.gather(*(self._write_async(number) for number in range(1, WRITERS, 2)))

    async def _write_async(self, number: int) -> None:
        while not self._over.is_set():
            await self._log.append(Topic.TURNS, ended(f"{number}-{self.counts[number]}"))
            self.counts[number] += 1


def test_a_spool_under_load_is_left_soon_after_the_log_is_back(tmp_path: Path) -> None:
    with far_log(tmp_path) as (log, inner):
        with Writers(log) as writers:
            for _ in range(3):
                inner.away = True
                wait_for(lambda: log.depth_records > 500)
                inner.away = False
                wait_for(lambda: log.state == "ok")
                before = sum(writers.counts)
                wait_for(lambda: sum(writers.counts) > before + 100)  # noqa: B023
                assert log.state == "ok"
        writers.__exit__()
        assert by_writer(log) == {str(number): list(range(count)) for number, count in enumerate(writers.counts)}


def test_a_log_that_goes_away_during_the_handover_lets_everybody_into_the_spool(tmp_path: Path) -> None:
    with far_log(tmp_path) as (log, inner):
        with Writers(log) as writers:
            for _ in range(30):
                inner.away = True
                before = sum(writers.counts)
                wait_for(lambda: sum(writers.counts) > before + 50)  # noqa: B023
                inner.away = False
                wait_for(lambda: log.depth_records < 10)
        wait_for(lambda: log.state == "ok")
        writers.__exit__()
        assert by_writer(log) == {str(number): list(range(count)) for number, count in enumerate(writers.counts)}


def test_what_is_drained_takes_one_append_of_each_topic_and_not_of_each_record(tmp_path: Path) -> None:
    with far_log(tmp_path) as (log, inner):
        inner.away = True
        for index in range(40):
            log.append_blocking(Topic.TURNS, [ended(f"t-{index}")])
            log.append_blocking(Topic.REWARDS, [ended(f"r-{index}")])
        inner.away = False
        wait_for(lambda: log.state == "ok")
        assert len(inner.appends) <= 4  # the first segment may be handed on after its first record
        assert by_writer(log) == {"t": list(range(40))}


def test_whoever_gives_up_at_the_gate_holds_nobody_up() -> None:
    gate = AppendBarrier()

    async def main() -> None:
        with gate.shut():
            patient, hasty = asyncio.ensure_future(gate.passed()), asyncio.ensure_future(gate.passed())
            await asyncio.sleep(0)
            hasty.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hasty
            assert not patient.done()
        await asyncio.wait_for(patient, 60.0)

    asyncio.run(main())
    gate.passed_blocking()
