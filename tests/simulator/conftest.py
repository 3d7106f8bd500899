"""Fixtures; the modules beside this file are importable by name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scripted_service import ScriptedService, serving


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with serving() as service:
        yield service
