"""The page on tasks tells of every field, and its example is a task."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from pydantic import BaseModel
from shown_examples import CHECKED, of_test
from task_folders import base_of, builder

from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.__main__ import app
from environments.tasks.checking import check
from environments.tasks.harbor import schema
from environments.tasks.harbor.folder import read_task

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "environments" / "tasks.md").read_text()
TOLD = set(re.findall(r"`([a-z_]+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))))
MODELS = [each for each in vars(schema).values() if isinstance(each, type) and issubclass(each, schema.TaskTable)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_told_of(model: type[BaseModel]) -> None:
    assert not {*model.model_fields} - TOLD - {"name", "email"}


def write_example(tmp_path: Path) -> None:
    blocks = re.findall(r"```(markdown|dockerfile|sh)\n(.*?)```", PAGE, re.DOTALL)
    names = ("instruction.md", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh")
    for name, (_, content) in zip(names, blocks, strict=False):
        path = tmp_path / "greet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "greet" / "task.toml").touch()


def test_the_commands_of_the_page_find_the_example_fair(
    tmp_path: Path,
    images: Path,
    kept_images: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of docs/environments/tasks.md that check it, with images where others have theirs."""
    write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    for example in of_test(CHECKED, "docs/environments/tasks.md"):
        line = example.text.splitlines()[0].replace("/images/ubuntu", str(base_of(images)))
        words = shlex.split(line.removeprefix("$ python -m environments.tasks "))
        code = app([*words, "--images", str(kept_images)], result_action="return_value")
        said = capsys.readouterr().out
        assert (code, "greet" in said, "yes" in said) == (0, True, True), said


def test_the_example_is_a_fair_task(tmp_path: Path, images: Path) -> None:
    write_example(tmp_path)

    async def run() -> list[tuple[str, float | None, float | None, tuple[str, ...]]]:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            found = check([read_task(tmp_path / "greet")], builder(images), sandboxes)
            return [(one.name, one.solved, one.untouched, one.wrong) async for one in found]
        finally:
            await sandboxes.close()

    assert asyncio.run(run()) == [("greet", 1.0, 0.0, ())]
