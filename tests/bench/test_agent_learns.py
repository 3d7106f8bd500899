"""What the benchmark of learning from rollouts counts, and when it says that its goal holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.environments.agent_learns import Seen, figures, rows
from environments.harness.harness import Work
from environments.rollouts.episode import Episode, EpisodeResult
from simulator.tasks.folders import fix_tasks, write_folders


def ended(task: str, reward: float | None, part: str | None = None, version: int = 1) -> EpisodeResult:
    episode = Episode(f"e-{task}", task, "d", "onward-agent@1", "held-out")
    work = Work("done", None, ("turn",), (version,))
    return EpisodeResult(episode, "judged" if part is None else "infrastructure", reward, work, 0.0, 1.0, part)


def test_a_failure_of_the_machine_is_counted_and_is_no_reward() -> None:
    before = Seen([ended("one", None, "sandbox"), ended("one", 0.0), ended("two", 1.0), ended("three", None, "disk")])
    after = Seen([ended("one", 1.0, version=3), ended("two", 1.0, version=3), ended("three", 1.0, version=3)])
    found = figures(before, Seen([ended("other", 1.0, version=2), ended("other", None, "verifier", 2)]), after)
    assert (found["held_out"], found["passed_start"], found["passed_end"], found["gain"]) == (2, 0.5, 1.0, 0.5)
    assert (found["not_judged"], found["episodes"], found["passed_taught"]) == (1, 1, 1.0)
    assert found["failures"] == {"sandbox": 1, "disk": 1, "verifier": 1}
    assert (found["failed_with_reward"], found["versions"]) == (0, 2)


def run(seed: int, gain: float, model: str = "tiny") -> dict[str, Any]:
    counts = {"held_out": 64, "not_judged": 0, "episodes": 300, "turns": 900, "versions": 30, "failed_with_reward": 0}
    shares = {"passed_start": 0.3, "passed_end": 0.3 + gain, "gain": gain}
    return {"model": model, "seed": seed, "commit": "c", "seconds": 90.0, "failures": {"disk": 1}, **counts, **shares}


@pytest.mark.parametrize(
    ("gains", "holds"),
    [
        pytest.param((0.2, 0.3, 0.25, 0.2, 0.3), True, id="five that gained"),
        pytest.param((0.2, 0.3, 0.25, 0.2), False, id="too few seeds"),
        pytest.param((0.4, -0.3, 0.3, -0.2, 0.2), False, id="luck"),
        pytest.param((0.2,), False, id="one seed"),
    ],
)
def test_the_goal_holds_where_the_interval_of_five_seeds_lies_above_0(gains: tuple[float, ...], holds: bool) -> None:
    told = {row.metric: row for row in rows([run(seed, gain) for seed, gain in enumerate(gains)])}
    assert told["lower end of the gain's 95 % interval over seeds"].holds is holds
    assert told["attempts without a judgement"].value == len(gains)


def test_models_are_told_apart() -> None:
    told = {row.metric: row.value for row in rows([run(0, 0.2), run(0, 0.4, "smollm2"), run(1, 0.6, "smollm2")])}
    assert told["gain, mean"] == pytest.approx(0.2)
    assert told["smollm2: gain, mean"] == pytest.approx(0.5)


def test_a_task_that_is_told_says_the_calls_that_solve_it_and_is_judged_as_any(tmp_path: Path) -> None:
    write_folders(tmp_path / "told", taught=1, held_out=0, seed=3, is_told=True)
    write_folders(tmp_path / "sought", taught=1, held_out=0, seed=3)
    (told,), (sought,) = (list((tmp_path / name / "taught").iterdir()) for name in ("told", "sought"))
    (task,) = fix_tasks(1, 3)
    edit = json.dumps({"line": task.bug_line, "text": task.correct_line})
    assert f"edit_file with {edit}, " in (told / "instruction.md").read_text()
    assert (told / "tests" / "judge.py").read_text() == (sought / "tests" / "judge.py").read_text()
