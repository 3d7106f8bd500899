"""A reward spec in a file."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "rewards.toml"
        path.write_text(text)
        return path

    return write
