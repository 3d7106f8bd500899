"""Fixtures: events to write, and a log and a store to write them to."""

from collections.abc import Callable, Iterator
from pathlib import Path

import made_events
import pytest
from ready_stores import open_ready

from core.events import Completion, Outcome
from core.store import SqlStore
from ingest.sqlite.log import SqliteEventLog


@pytest.fixture
def completion() -> Callable[..., Completion]:
    return made_events.completion


@pytest.fixture
def outcome() -> Callable[..., Outcome]:
    return made_events.outcome


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteEventLog]:
    log = SqliteEventLog(tmp_path / "log.db", 2, 0.01)
    yield log
    log.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_ready(tmp_path / "store.db")
    yield store
    store.close()
