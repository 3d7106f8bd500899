"""Fixtures: services for our own clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_harness import Service, serve
from mortal_service import MortalService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service") as service:
        yield service


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalService]:
    service = MortalService(tmp_path / "mortal").start()
    yield service
    service.kill()
