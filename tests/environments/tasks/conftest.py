"""What tests of tasks stand on: bubblewrap, and images that are kept between runs."""

from pathlib import Path

import pytest
from kept_images import IMAGES
from sandboxed import require_bubblewrap


@pytest.fixture(scope="session")
def images() -> Path:
    """Return where images are kept. Skips without bubblewrap, and fails in CI."""
    require_bubblewrap()
    return IMAGES
