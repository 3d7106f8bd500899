"""What tests of tasks stand on: bubblewrap, and a small image for whatever base their Dockerfiles ask for."""

from pathlib import Path

import pytest
from kept_images import IMAGES
from sandboxed import require_bubblewrap
from task_folders import new_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where images are kept, beside the base of them all."""
    return new_images(tmp_path_factory)


@pytest.fixture(scope="session")
def kept_images() -> Path:
    """Return where images upon this machine's programs are kept, also between runs."""
    require_bubblewrap()
    return IMAGES
