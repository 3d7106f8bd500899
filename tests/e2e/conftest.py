"""Fixtures: services in directories of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from service_tree import Service


@pytest.fixture
def make_service(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    services: list[Service] = []

    def make(**settings: Any) -> Service:
        directory = tmp_path / f"service{len(services)}"
        directory.mkdir()
        named = {name.replace("__", "."): value for name, value in settings.items()}
        services.append(Service(directory, named))
        return services[-1]

    yield make
    for service in services:
        service.stop()
