"""What tests in real sandboxes need of the machine."""

import os
import shutil

import pytest

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap import program


def require_bubblewrap() -> None:
    """Skip the test without bubblewrap, and fail it in CI."""
    if missing := _missing():
        if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
            pytest.fail(missing)
        pytest.skip(missing)


def _missing() -> str | None:
    try:
        program.find()
    except InfrastructureFailure as failure:
        return str(failure)
    absent = [name for name in ("unshare", "mount") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None
