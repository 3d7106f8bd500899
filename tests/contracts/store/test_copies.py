"""The rows of a whole store, read from each database and written into an empty one of each."""

import threading
from datetime import UTC, datetime
from pathlib import Path

import made_events
import pytest
from stores import KINDS, Database, database

from core.errors import Conflict
from core.ids import base_ref
from core.store import SqlStore
from core.store.database import copies

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TURNS = 600  # more than are read at once


def fill(store: SqlStore) -> None:
    turns = [made_events.completion(f"session {number}") for number in range(TURNS)]
    with store.work() as work:
        work.turns.put(turns)
        work.policies.allocate(NOW)
        work.orders.give("local", "hold", base_ref(1), "a siege", "ops", NOW)


def rows(store: SqlStore) -> list[tuple[str, list[tuple[object, ...]]]]:
    with store.read() as connection:
        return [(table, [tuple(row) for row in found]) for table, found in copies.read_rows(connection)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_read_and_written_and_numbers_go_on(home: Database, kind: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    store = home.open()
    fill(store)
    read = rows(store)
    with store.read() as connection:
        assert copies.count_rows(connection) == sum(len(found) for _, found in read) > TURNS
    with database(kind, tmp_path / "other") as place:
        other = place.open()
        with other.begin() as connection:
            copies.require_empty(connection)
            for table, found in read:
                copies.write_rows(connection, table, copies.COLUMNS[table], found)
            copies.go_on_counting(connection)
        assert rows(other) == read
        with other.work() as work:
            assert work.orders.give("local", "unhold", base_ref(1), "it is over", "ops", NOW) == 2
            assert work.policies.allocate(NOW).version == 2
        with other.begin() as connection, pytest.raises(Conflict, match="table"):
            copies.require_empty(connection)
        other.close()
    store.close()


def test_while_it_is_frozen_nobody_gets_a_number(home: Database) -> None:
    store = home.open()
    given: list[int] = []

    def allocate() -> None:
        with store.work() as work:
            given.append(work.policies.allocate(NOW).version)

    with store.begin() as connection:
        copies.freeze(connection)
        with store.read() as view:
            before = copies.count_rows(view)
            learner = threading.Thread(target=allocate)
            learner.start()
            learner.join(0.3)
            assert (given, copies.count_rows(view)) == ([], before)
    learner.join(60)
    assert given == [1]
    store.close()
