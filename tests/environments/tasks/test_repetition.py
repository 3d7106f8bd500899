"""Work is compared with what was there, where that can be; work that cannot be compared with it is worth nothing."""

import asyncio
from pathlib import Path

import pytest
from task_folders import PASSES, prepared, write_task

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.judging.repetition import Judged, judge
from environments.tasks.opening import open_sandbox


def judged(folder: Path, images: Path, work: str) -> Judged:
    async def run() -> Judged:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            task = await prepared(folder, images)
            async with await open_sandbox(task, sandboxes) as sandbox:
                await sandbox.run(("sh", "-c", work), timeout_seconds=20)
                return await judge(task, sandbox, sandboxes)
        finally:
            await sandboxes.close()

    return asyncio.run(run())


def test_more_files_than_can_be_compared_are_no_way_around_the_comparison(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.tasks.judging.repetition._MOST_FILES", 3)
    folder = write_task(tmp_path / "t")
    assert judged(folder, images, "touch 1.py 2.py 3.py").reward == 1
    assert judged(folder, images, "touch 1.py 2.py 3.py 4.py").reward == 0


def test_a_task_that_has_too_many_files_is_no_fault_of_the_works(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tests alone decide, and that nothing repeated is looked for is said once."""
    monkeypatch.setattr("environments.tasks.judging.repetition._MOST_FILES", 3)
    dockerfile = "FROM base\nWORKDIR /app\nRUN touch 1.py 2.py 3.py 4.py\n"
    half = PASSES.replace("1", "0.5")
    folder = write_task(tmp_path / "large", dockerfile=dockerfile, tests=half)
    assert [judged(folder, images, work).reward for work in ("true", "touch 5.py")] == [0.5, 0.5]
    (said,) = [record.message for record in caplog.records if "repeats" in record.message]
    assert said.startswith("large: judged by its tests alone")
    assert "(4 found)" in said
