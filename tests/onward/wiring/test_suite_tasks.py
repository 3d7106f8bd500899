"""A suite with tasks, wired as the release controller has it: an agent can be let in, and a mistake is told at once."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from kept_images import KEPT
from sandboxed import require_bubblewrap
from scripted_policy import ScriptedPolicy

from core.errors import ConfigError
from core.ids import base_ref
from core.settings import Settings
from onward.directory.layout import Layout
from onward.wiring.foundation import Foundation, open_foundation
from onward.wiring.releases import _build_cases
from onward.wiring.rollouts import plan_of, workshop_of

TASK = {
    "task.toml": "",
    "instruction.md": "Sum.\n",
    "environment/Dockerfile": "FROM base\n",
    "tests/test.sh": "exit 0\n",
}


def put_task(folder: Path, settings: str = "") -> None:
    for name, content in (TASK | {"task.toml": settings}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def opened(directory: Path, suite: Path) -> Foundation:
    return open_foundation(directory, {"ONWARD_RELEASE__EVALS__SUITE": str(suite), "ONWARD_SERVING__ENGINE": "sglang"})


def test_agents_are_let_in_for_a_suite_with_tasks(tmp_path: Path) -> None:
    put_task(tmp_path / "suite" / "sum")
    with closing(opened(tmp_path / "service", tmp_path / "suite")) as foundation:
        gate = _build_cases(foundation, None)
        assert gate is not None
        assert gate._open_attempts is not None
        attempts = gate._open_attempts

        async def let_in() -> bool:
            async with attempts(ScriptedPolicy(), base_ref(2)) as attempt:
                return callable(attempt)

        assert asyncio.run(let_in())


def test_a_task_that_cannot_be_honoured_ends_the_start(tmp_path: Path) -> None:
    put_task(tmp_path / "suite" / "sum", "[agent]\ntimeout = 3\n")
    with (
        closing(opened(tmp_path / "service", tmp_path / "suite")) as foundation,
        pytest.raises(ConfigError, match="timeout is unknown"),
    ):
        _build_cases(foundation, None)


def test_without_tasks_no_agent_is_needed(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    case = '[[case]]\nname = "a"\nprompt = "?"\nchecker = { kind = "exact", text = "5" }\n'
    (tmp_path / "suite" / "a.toml").write_text(case)
    with closing(opened(tmp_path / "service", tmp_path / "suite")) as foundation:
        gate = _build_cases(foundation, None)
        assert gate is not None
        assert gate._open_attempts is None


def test_a_task_of_a_suite_is_no_rollout(tmp_path: Path) -> None:
    """Whichever suite it is of: that of the releases, the one that is mined, or one that is kept out of training."""
    require_bubblewrap()
    put_task(tmp_path / "product" / "sum")
    put_task(tmp_path / "suite" / "the-same")
    rollouts = {"task_sets": {"own": {"folders": [tmp_path / "product"]}}, "images": {"*": "machine"}, "prepared": KEPT}
    for named in (
        {"release": {"evals": {"suite": tmp_path / "suite"}}},
        {"release": {"evals": {"drafts": tmp_path / "suite"}}},
        {"learner": {"admission": {"keep_out": [tmp_path / "suite"]}}},
    ):
        settings = Settings.model_validate({"rollouts": rollouts, **named})
        workshop = workshop_of(Layout(tmp_path), settings.rollouts)
        with pytest.raises(ConfigError, match="own: sum is a task of the suite"):
            asyncio.run(plan_of(workshop, settings, "http://127.0.0.1:9/v1"))
