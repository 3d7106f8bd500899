"""What home takes from the bucket: every record of an edge, in order, also where a listing leaves some out."""

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import made_events
import pytest

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.codec import encode
from core.events import Topic
from core.ids import SessionId
from core.records.whole_log import read_whole
from core.store import open_sqlite
from ingest.clusters.bucket import Bucket, Segment
from ingest.clusters.gatherer import Gatherer
from ingest.sqlite.log import SqliteEventLog


class Forgetful(Bucket):
    """A bucket whose listings leave out the first segments, as many as `left_out` says."""

    left_out = 0

    def segments(self) -> list[Segment]:
        return super().segments()[self.left_out :]


class Home:
    def __init__(self, directory: Path) -> None:
        self.clock, self.bucket = ManualClock(made_events.NOW), Forgetful(FsspecBlobs(directory / "bucket"))
        self.log, self.store = SqliteEventLog(directory / "log.db", 1, 0.01), open_sqlite(directory / "store.db")
        self.gatherer = Gatherer(self.log, self.store, self.bucket, "home", self.clock, 0.01)

    def sessions(self) -> list[str]:
        found = [record.event for batch in read_whole(self.log, Topic.TURNS) for record in batch]
        return [event.session_id for event in found if event is not None]

    def sends(self, start: int, end: int) -> None:
        turns = [made_events.completion(SessionId(f"s{offset}")) for offset in range(start, end)]
        pieces = [(offset, encode(turn)) for offset, turn in enumerate(turns, start)]
        self.bucket.put_segment(Segment("edge", 0, start, end), pieces)

    def close(self) -> None:
        self.gatherer.close()
        self.log.close()
        self.store.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with closing(Home(tmp_path)) as home:
        yield home


def test_a_segment_waits_for_the_one_before_it(home: Home) -> None:
    home.sends(0, 2)
    home.sends(2, 3)
    home.bucket.left_out = 1
    assert home.gatherer.tick() > 0, "nothing to do at once"
    assert home.sessions() == []
    home.bucket.left_out = 0
    assert home.gatherer.tick() == 0
    assert home.sessions() == ["s0", "s1", "s2"]
    assert home.bucket.segments() == []


def test_what_never_comes_is_said_and_stops_nobody(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    home.sends(2, 3)
    home.sends(3, 4)
    home.gatherer.tick()
    home.clock.advance(59)
    home.gatherer.tick()
    assert home.sessions() == []
    home.clock.advance(1)
    with caplog.at_level(logging.ERROR):
        home.gatherer.tick()
    assert home.sessions() == ["s2", "s3"]
    assert caplog.messages == ["edge: records 0 to 1 of partition 0 never came"]


def test_each_gap_waits_by_itself(home: Home) -> None:
    home.sends(0, 1)
    home.sends(1, 2)
    home.bucket.left_out = 1
    home.gatherer.tick()
    home.clock.advance(59)
    home.bucket.left_out = 0
    home.gatherer.tick()
    home.sends(2, 3)
    home.sends(3, 4)
    home.bucket.left_out = 1
    home.clock.advance(59)
    home.gatherer.tick()
    home.bucket.left_out = 0
    home.gatherer.tick()
    assert home.sessions() == ["s0", "s1", "s2", "s3"]
