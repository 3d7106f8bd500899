"""A pretrained model in the whole service, asked and taught by users over HTTP."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pretrained import smollm2

from onward.commands import demo
from simulator.functions.subject import Functions
from simulator.lessons.lesson import LessonOptions
from simulator.lessons.run import run_lesson
from simulator.tasks.sandbox import ForkServer

UPDATED_S = 600.0  # until what users said has made a version


def test_a_pretrained_model_learns_from_users_who_want_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "PRETRAINED_MODEL", smollm2())
    small = {"ONWARD_LEARNER__BATCH__TURNS": "4", "ONWARD_LEARNER__BATCH__MIN_TURNS": "2"}

    async def teach(urls: list[str]) -> dict[str, Any]:
        sandbox = ForkServer()
        try:
            plan = LessonOptions(tuple(urls), 5.0, 0, examined=4, users=4, model=demo.PRETRAINED_NAME)
            return await run_lesson(plan, Functions(sandbox), None, tmp_path, {"command": "teach", "commit": None})
        finally:
            await sandbox.close()

    with demo.running_service(tmp_path / "service", demo.pretrained_settings(seed=0) | small) as urls:
        told = asyncio.run(teach(urls))
        deadline_s = time.monotonic() + UPDATED_S
        while len(httpx.get(urls[0] + "/v1/policies", timeout=60).json()["data"]) < 2:
            assert time.monotonic() < deadline_s, "no update was made of what users said"
            time.sleep(0.5)
    assert told["failures"] == []
    assert (told["failed_requests"], told["lost_turns"], told["lost_outcomes"]) == (0, 0, 0)
    assert told["held_out"] == 4
    assert told["taught"] >= 4
