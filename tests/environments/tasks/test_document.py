"""The page on tasks tells of every field, and its example is a task."""

import asyncio
import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from task_folders import builder

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.checking import check
from environments.tasks.harbor import schema
from environments.tasks.harbor.folder import read_task

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "environments" / "tasks.md").read_text()
TOLD = set(re.findall(r"`([a-z_]+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))))
MODELS = [each for each in vars(schema).values() if isinstance(each, type) and issubclass(each, schema.Settings)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_told_of(model: type[BaseModel]) -> None:
    assert not {*model.model_fields} - TOLD - {"name", "email"}


def test_the_example_is_a_fair_task(tmp_path: Path, images: Path) -> None:
    blocks = re.findall(r"```(markdown|dockerfile|sh)\n(.*?)```", PAGE, re.DOTALL)
    names = ("instruction.md", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh")
    for name, (_, content) in zip(names, blocks, strict=False):
        path = tmp_path / "greet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "greet" / "task.toml").touch()

    async def run() -> list[tuple[str, float | None, float | None, tuple[str, ...]]]:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            found = check([read_task(tmp_path / "greet")], builder(images), sandboxes)
            return [(one.name, one.solved, one.untouched, one.wrong) async for one in found]
        finally:
            await sandboxes.close()

    assert asyncio.run(run()) == [("greet", 1.0, 0.0, ())]
