"""Fixtures; the modules beside this file are importable by name."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from api_harness import Service, serve


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service") as service:
        yield service


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    open_services: list[AbstractContextManager[Service]] = []

    def make(name: str = "service", **settings: Any) -> Service:
        manager = serve(tmp_path / name, **settings)
        service = manager.__enter__()
        open_services.append(manager)
        return service

    yield make
    for manager in reversed(open_services):
        manager.__exit__(None, None, None)


@pytest.fixture(scope="module")
def quick_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield one service for all examples of a property; it does not wait for unknown ids."""
    with serve(tmp_path_factory.mktemp("api") / "service") as service:
        yield service
