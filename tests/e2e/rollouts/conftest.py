"""What all these tests need."""

import pytest
from sandboxed import require_bubblewrap


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    require_bubblewrap()
