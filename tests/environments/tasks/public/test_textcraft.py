"""Public tasks of a registry run unchanged: their solution is rewarded in full, and who does nothing is not."""

import asyncio
import os
import re
from pathlib import Path

import pytest
from task_folders import upon_this_machine

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.checking import Checked, check
from environments.tasks.harbor.folder import read_tasks
from environments.tasks.public.interpreters import found
from environments.tasks.public.textcraft import textcraft


@pytest.fixture(autouse=True)
def python() -> None:
    """Skip without a Python of version 3.12, and fail in CI: there textcraft says so itself."""
    if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
        return
    try:
        found((3, 12))
    except InfrastructureFailure as failure:
        pytest.skip(str(failure))


def test_four_public_tasks_are_fair_as_they_are(kept_images: Path) -> None:
    async def run() -> list[Checked]:
        folder = await textcraft(kept_images / "public")
        sandboxes = Bubblewrap(kept_images / "sandboxes")
        try:
            return [one async for one in check(read_tasks([folder]), upon_this_machine(kept_images), sandboxes)]
        finally:
            await sandboxes.close()

    done = asyncio.run(run())
    assert [one for one in done if one.wrong] == []
    assert {(one.solved, one.untouched) for one in done} == {(1.0, 0.0)}
    assert sum(bool(re.fullmatch(r"textcraft/(train|val)-\d+", one.name)) for one in done) == 4
