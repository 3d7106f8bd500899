"""Fixtures: a real service with a scripted model, and a small repository that sandboxes copy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_harness import Service, serve

CALC = '''\
"""Sums."""


def add(one, other):
    """Add two numbers."""
    return one - other
'''


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path / "service") as service:
        yield service


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "calc").mkdir(parents=True)
    (root / "calc" / "sums.py").write_text(CALC)
    (root / "test_sums.py").write_text("from calc.sums import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    (root / "notes.txt").write_text("".join(f"line {number}\n" for number in range(1, 501)))
    return root
