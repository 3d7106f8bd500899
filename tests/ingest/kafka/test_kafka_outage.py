"""Brokers that die and return, or start late. Each test has a broker of its own."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kafka_world import PARTITIONS, is_there, open_log, topics_of_our_own
from made_events import ended
from services import require_broker
from waiting import wait_for

from core.errors import Fenced, LogUnavailable
from core.events import Outcome, Topic
from core.ids import Namespace, OutcomeId, SessionId
from core.ports import Consumer, EventLog, LogReader, Record
from core.settings import KafkaClientSettings, KafkaSettings
from deploy.services.broker import Broker
from ingest.kafka.log import KafkaEventLog
from ingest.kafka.topics import migrate
from ingest.spool.spool import SpoolingLog

logger = logging.getLogger(__name__)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = require_broker(tmp_path / "kafka")
    yield broker
    broker.kill()


def numbered(writer: int, number: int) -> Outcome:
    return Outcome(
        outcome_id=OutcomeId(f"{writer}-{number}"),
        inference_id=None,
        session_id=SessionId(f"session-{writer}"),
        namespace=Namespace("n"),
        name="rating",
        value=number,
        observed_at=NOW,
        received_at=NOW,
    )


def read_all(log: EventLog, reader: LogReader) -> list[Record]:
    records: list[Record] = []
    deadline_s = time.monotonic() + 120.0
    while any(reader.position(source) < log.end(source) for source in reader.assignment()):
        assert time.monotonic() < deadline_s
        records += reader.poll(500, 0.2)
    return records


class Writers:
    """Writers that number their session's events and wait for each append, so that order can be checked."""

    def __init__(self, log: SpoolingLog, count: int) -> None:
        self.acknowledged: dict[int, int] = dict.fromkeys(range(count), 0)
        self.stopping = False
        self._log = log

    async def run(self) -> None:
        await asyncio.gather(*(self._write(writer) for writer in self.acknowledged))

    async def _write(self, writer: int) -> None:
        while not self.stopping:
            await self._log.append(Topic.TURNS, numbered(writer, self.acknowledged[writer]))
            self.acknowledged[writer] += 1
            await asyncio.sleep(0.005)

    def total(self) -> int:
        return sum(self.acknowledged.values())


async def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain: {what()}"
        await asyncio.sleep(0.02)


def test_a_broker_killed_twice_loses_nothing_acknowledged(broker: Broker, tmp_path: Path) -> None:
    with topics_of_our_own([broker.address], client={"delivery_timeout_s": 1.5}) as settings:
        log = SpoolingLog(open_log(settings), tmp_path / "spool", 64 << 20)
        writers = Writers(log, 8)

        def state() -> str:
            return f"{writers.total()} acknowledged; the broker at {broker.address}; {log.state}"

        async def main() -> None:
            writing = asyncio.ensure_future(writers.run())
            for _ in range(2):
                before = writers.total()
                await until(lambda: writers.total() > before + 200, state)  # noqa: B023
                await asyncio.to_thread(broker.kill)
                await until(lambda: log.depth_records > 100, state)
                await asyncio.to_thread(broker.up)
                await until(lambda: log.state == "ok", state)
            writers.stopping = True
            await writing

        asyncio.run(main())
        wait_for(lambda: log.state == "ok")
        reader = log.reader([Topic.TURNS])
        records = read_all(log, reader)
        reader.close()
        log.close()
    seen: dict[int, list[int]] = defaultdict(list)
    for record in records:
        assert isinstance(record.event, Outcome)
        writer, number = map(int, record.event.outcome_id.split("-"))
        seen[writer].append(number)
    first_seen = {writer: list(dict.fromkeys(numbers)) for writer, numbers in seen.items()}
    assert first_seen == {writer: list(range(count)) for writer, count in writers.acknowledged.items()}
    again = len(records) - writers.total()
    logger.warning("%d acknowledged, %d in the log, %d of them again", writers.total(), len(records), again)
    assert again < writers.total() / 4


def test_readers_and_members_survive_it(broker: Broker) -> None:
    with topics_of_our_own([broker.address], client={"session_timeout_s": 6.0}) as settings:
        log = open_log(settings)
        log.append_blocking(Topic.TURNS, [ended(f"{index}") for index in range(40)])
        reader, member = log.reader([Topic.TURNS]), log.consumer("group", [Topic.TURNS])
        assert len(read_all(log, reader)) == 40
        wait_for(lambda: member.poll(100, 0.1))
        broker.kill()
        assert reader.poll(10, 0.3) == []
        with pytest.raises(LogUnavailable):
            log.end(min(reader.assignment()))
        broker.up()
        wait_for(lambda: appended(log, "later"))
        assert len(read_until_quiet(log, reader)) >= 1
        wait_for(lambda: committed(log, member))
        reader.close()
        member.close()
        log.close()


def read_until_quiet(log: KafkaEventLog, reader: LogReader) -> list[Record]:
    found: list[Record] = []
    wait_for(lambda: found.extend(reader.poll(100, 0.2)) or found)
    return found


def appended(log: KafkaEventLog, session: str) -> bool:
    try:
        log.append_blocking(Topic.TURNS, [ended(session)])
    except LogUnavailable:
        return False
    return True


def committed(log: KafkaEventLog, member: Consumer) -> bool:
    try:
        member.poll(100, 0.1)
        sources = member.assignment()
        member.commit({source: member.position(source) for source in sources})
        return len(sources) == PARTITIONS and all(member.position(s) == log.end(s) for s in sources)
    except (LogUnavailable, Fenced):  # fenced: the broker took it for gone; the next poll joins again
        return False


def test_a_log_may_be_made_before_its_broker_is_there(broker: Broker, tmp_path: Path) -> None:
    settings = KafkaSettings(bootstrap_servers=(broker.address,), client=KafkaClientSettings(delivery_timeout_s=1.5))
    broker.kill()
    began_s = time.monotonic()
    log = SpoolingLog(KafkaEventLog(settings), tmp_path / "spool", 1 << 20)
    log.append_blocking(Topic.TURNS, [ended("early")])
    assert time.monotonic() - began_s < 15.0
    wait_for(lambda: broker.address in log.state)
    broker.up()
    wait_for(lambda: "onward migrate" in log.state)  # its topics are not there
    migrate(settings, PARTITIONS)
    wait_for(lambda: log.state == "ok")
    reader = log.reader([Topic.TURNS])
    assert [record.event for record in read_all(log, reader)] == [ended("early")]
    reader.close()
    log.close()


def test_a_wrong_address_is_named_at_once(caplog: pytest.LogCaptureFixture) -> None:
    began_s = time.monotonic()
    log = KafkaEventLog(
        KafkaSettings(bootstrap_servers=("127.0.0.1:1",), client=KafkaClientSettings(delivery_timeout_s=60.0))
    )
    with caplog.at_level(logging.WARNING, "ingest.kafka.producer"):
        wait_for(lambda: caplog.records)
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1: .*refused"):
        log.append_blocking(Topic.TURNS, [ended("s")])
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):
        log.consumer("group", [Topic.TURNS]).poll(1, 0.0)
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:1"):
        log.reader([Topic.TURNS]).assignment()
    assert not is_there(log)
    log.close()
    assert time.monotonic() - began_s < 30.0
