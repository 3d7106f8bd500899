"""What tests in real sandboxes need of the machine."""

import asyncio
import os
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
def _why_none_opens(*, rlimits_may_do: bool) -> str | None:
    """Return what bubblewrap, the kernel or its control groups lack here, as whoever opens a sandbox is told."""

    async def open_one(directory: Path) -> None:
        await (await Bubblewrap(directory, rlimits_may_do=rlimits_may_do).open(SandboxSpec())).close()

    try:
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(open_one(Path(directory)))
    except InfrastructureFailure as failure:
        return str(failure)
    return None
