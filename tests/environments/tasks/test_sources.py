"""Tasks of all kinds are read from folders."""

import asyncio
from pathlib import Path

import pytest
from task_folders import builder, write_task

from environments.errors import TaskError
from environments.tasks.preparing import Lent
from environments.tasks.sources import ready_tasks

pytest.importorskip("reasoning_gym")


def test_folders_of_tasks_and_datasets_are_read_together(tmp_path: Path, images: Path) -> None:
    write_task(tmp_path / "set" / "one")
    (tmp_path / "legs").mkdir()
    (tmp_path / "legs" / "reasoning-gym.toml").write_text(
        'dataset = "leg_counting"\nsize = 2\nseed = 7\nagent_timeout_sec = 60.0\n[config]\nmax_animals = 4\n'
    )
    tasks = asyncio.run(ready_tasks([tmp_path / "set", tmp_path / "legs"], builder(images)))
    assert [task.name for task in tasks] == ["one", "reasoning-gym/leg_counting/0", "reasoning-gym/leg_counting/1"]
    assert [task.agent_timeout_seconds for task in tasks] == [600, 60, 60]


def test_a_task_gets_what_it_is_lent_and_nothing_else(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    settings = '[environment]\nnetwork_mode = "public"\nenv = { A = "${OTHER}", B = "${A_KEY:-none}" }\n'
    write_task(tmp_path / "set" / "one", settings)
    lent = Lent({"OTHER": "told"}, network=True)
    (task,) = asyncio.run(ready_tasks([tmp_path / "set"], builder(images), lent))
    assert (task.spec.environment["A"], task.spec.environment["B"], task.spec.network) == ("told", "none", True)
    for less in (Lent({"OTHER": "told"}), Lent(network=True), None):
        with pytest.raises(TaskError, match=r"lent|lend"):
            asyncio.run(ready_tasks([tmp_path / "set"], builder(images), less))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("size = 2", "dataset: Field required"),
        ('dataset = "leg_counting"\nsize = 0', "size: "),
        ('dataset = "leg_counting"\nsize = 1\nmany = true', "many: Extra inputs"),
        ("size", "reasoning-gym.toml: "),
    ],
)
def test_a_malformed_dataset_is_told_of(tmp_path: Path, images: Path, text: str, told: str) -> None:
    (tmp_path / "reasoning-gym.toml").write_text(text)
    with pytest.raises(TaskError, match=told):
        asyncio.run(ready_tasks([tmp_path], builder(images)))
