"""A mined task is one that agents can work on: it is read by the same rules as any other."""

from pathlib import Path

import msgspec
from made_drafts import CASE, draft

from environments.tasks.harbor.folder import read_task
from serving.evals.mining.written import put_case


def test_an_accepted_task_can_be_worked_on(tmp_path: Path) -> None:
    folder = put_case(tmp_path, draft("one"), msgspec.structs.replace(CASE, kind="task"))
    task = read_task(folder)
    assert (task.name, task.instruction.strip()) == ("sum", CASE.instruction)
    assert task.settings.metadata["repository"] == {"repository": "shop", "commit": "c0ffee"}
    assert task.dockerfile is not None
