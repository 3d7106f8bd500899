"""What tests of rollouts need of a machine."""

import os

import pytest


def need_root() -> None:
    """Skip a test that mounts disks of its own, and fail it in CI."""
    if os.geteuid() != 0:
        assert os.environ.get("ONWARD_REQUIRE_SERVICES") != "1", "not root: it cannot mount a disk of its own"
        pytest.skip("not root: it cannot mount a disk of its own")
