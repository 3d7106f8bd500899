"""Fixtures."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from logged_world import MODEL, START, World, anchor_probe

from core.blobs import FsspecBlobs
from core.clock import ManualClock
from core.store import open_sqlite
from ingest.sqlite_log import SqliteEventLog
from serving.releases import ensure_anchor
from serving.weights import BlobWeights

MakeWorld = Callable[[str], World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(name: str = "world") -> World:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        log = SqliteEventLog(directory / "log.db", 2, 0.01)
        store, blobs = open_sqlite(directory / "store.db"), FsspecBlobs(directory / "blobs")
        weights, clock = BlobWeights(blobs), ManualClock(START)
        ensure_anchor(store, log, weights, blobs, MODEL, "onward-tiny", anchor_probe, clock)
        made.append(World(directory, log, store, blobs, weights, clock))
        return made[-1]

    yield make
    for world in made:
        world.log.close()
        world.store.close()
