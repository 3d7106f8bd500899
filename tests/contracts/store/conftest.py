"""A store on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import KINDS, Database, database

from core.ports import Store


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with database(request.param, tmp_path) as home:
        yield home


@pytest.fixture
def store(home: Database) -> Iterator[Store]:
    store = home.open()
    yield store
    store.close()
