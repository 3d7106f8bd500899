"""Fixtures; the modules beside this file are importable by name."""

from collections.abc import Iterator

import pytest
from scripted_service import ScriptedService, serving


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with serving() as service:
        yield service
