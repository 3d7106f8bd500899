"""What tests in real sandboxes need of the machine."""

import asyncio
import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import SandboxSpec

PATIENCE_S = 120.0


def require_bubblewrap(*, rlimits_may_do: bool = False) -> None:
    """Skip the test where no sandbox can be opened, and fail it in CI."""
    require(_why_none_opens(rlimits_may_do=rlimits_may_do))


def require(missing: str | None) -> None:
    """Skip the test for what the machine lacks, or fail where ONWARD_REQUIRE_SERVICES=1."""
    if missing is None:
        return
    if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
        pytest.fail(missing)
    pytest.skip(missing)


@cache
def shared_directory() -> Path:
    """Return where all sandboxes of this process keep what is made once, which takes longer than to open one."""
    directory = tempfile.mkdtemp(prefix="sandboxes-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


@cache
def _why_none_opens(*, rlimits_may_do: bool) -> str | None:
    """Return what bubblewrap, the kernel or its control groups lack here, as whoever opens a sandbox is told."""

    async def open_one() -> None:
        await (await Bubblewrap(shared_directory(), rlimits_may_do=rlimits_may_do).open(SandboxSpec())).close()

    try:
        asyncio.run(open_one())
    except InfrastructureFailure as failure:
        return str(failure)
    return None
