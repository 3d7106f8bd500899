"""Nobody keeps the processors busy for longer than his share: by measured times, so alone, after the rest."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sandboxed import require_bubblewrap
from world import LIBRARY, attempt, world

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.sandboxes.sandbox import CommandResult, Limits, SandboxSpec

LIMITS = Limits(output_bytes=100_000, cpus=0.5)


def tried(folder: Path, limits: Limits, code: str, *seconds: float) -> CommandResult:
    """Run a program for the first of these times in which it says anything."""

    async def act() -> CommandResult:
        bubblewrap = Bubblewrap(folder / "state")
        spec = SandboxSpec(outside.workspace, folders=LIBRARY, limits=limits)
        try:
            async with await bubblewrap.open(spec) as sandbox:
                for each in seconds:
                    result = await attempt(sandbox, code, outside, timeout_seconds=each)
                    if result.stdout:
                        break
                return result
        finally:
            await bubblewrap.close()

    (folder / "world").mkdir()
    with world(folder / "world") as outside:
        return asyncio.run(act())


@pytest.mark.timed
def test_a_busy_loop_gets_its_share_of_the_processors(tmp_path: Path) -> None:
    require_bubblewrap()
    code = "until = time.monotonic() + 1.0\nwhile time.monotonic() < until: pass\nprint(time.process_time())"
    assert float(tried(tmp_path, replace(LIMITS, cpus=0.2), code, 60).stdout) < 0.5


@pytest.mark.timed
def test_a_flood_of_output_is_cut_and_does_not_keep_this_process_busy(tmp_path: Path) -> None:
    require_bubblewrap()
    before, begun = time.process_time(), time.monotonic()
    code = "piece = b'x' * 65536\nwhile True: os.write(1, piece)"
    result = tried(tmp_path, LIMITS, code, 3, 30)
    assert result.timed_out
    assert len(result.stdout) == LIMITS.output_bytes
    assert result.cut_bytes > 0
    assert time.process_time() - before < 0.5 * (time.monotonic() - begun)
