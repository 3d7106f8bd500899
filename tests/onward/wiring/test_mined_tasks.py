"""A session of an agent becomes a task that the gate asks: a small one, upon this machine's shell."""

from pathlib import Path

import pytest
from mined_tasks import MinedTask
from shown_examples import AGENTS, commands, of_test
from task_folders import base_of, images, write_task

from onward.cli import app
from onward.wiring.suites.kept_out import kept_out_of, load_suites
from serving.evals.cases import load_suite

__all__ = ["images"]  # a fixture

TESTS = ("terminal", {"command": "sh run_tests.sh"})
REPAIR = ("edit", {"path": "add.sh", "edits": [{"old": "$1 - $2", "new": "$1 + $2"}]})
CALLS = [("read", {"path": "add.sh"}), TESTS, REPAIR, TESTS, ("done", {"message": "It adds."})]


@pytest.fixture
def mined(tmp_path: Path, images: Path) -> MinedTask:
    files = {
        "environment/add.sh": "echo $(($1 - $2))\n",
        "environment/run_tests.sh": 'test "$(sh add.sh 2 3)" = 5\n',
        "instruction.md": "add.sh takes where it should add.\n",
    }
    task = write_task(
        tmp_path / "add", dockerfile="FROM base\nWORKDIR /app\nCOPY add.sh run_tests.sh ./\n", files=files
    )
    return MinedTask(tmp_path, task, CALLS, images / "kept", {"*": str(base_of(images))})


def test_what_an_agent_did_becomes_a_case_that_a_worse_version_loses(mined: MinedTask) -> None:
    done = mined.work()
    found, (draft,) = mined.mined()
    assert (found.sessions, found.left_out) == (1, {})
    assert draft.asked == "add.sh takes where it should add.\n"
    assert draft.source.turn == done.inference_ids[-1]
    assert draft.work is not None
    assert draft.work.state is not None
    assert [(each.command, each.failed_before) for each in draft.work.tests] == [("sh run_tests.sh", True)]
    assert [(each.old, each.new) for each in draft.work.changes] == [("$1 - $2", "$1 + $2")]
    assert mined.accepted(draft.name) == [200, 409]
    assert kept_out_of(load_suites([mined.suite])).cases_told_by(draft.work.changes[0].text)
    verdict = mined.judged()
    assert (verdict.figures["cases_live"], verdict.figures["cases_candidate"]) == (1.0, 0.0), verdict
    again, drafts = mined.mined()
    assert (again.left_out, drafts) == ({"like_a_case": 1}, [])


def test_a_state_that_no_task_has_is_unknown_until_a_person_names_it(
    mined: MinedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They name it at a shell, as docs/evals.md shows; here the task is the one that the agent worked on."""
    mined.work()
    _, (draft,) = mined.mined(knows_the_task=False)
    assert draft.work is not None
    assert (draft.work.state, draft.work.image is None) == (None, False)
    assert mined.accepted(draft.name) == [409, 409]
    folder = mined.suite.parent
    monkeypatch.chdir(folder)
    for name, known in (("SUITE", mined.suite), ("data", mined.service), ("tasks", folder)):
        (folder / name).symlink_to(known)
    ((_, *words),) = commands(of_test(AGENTS, "docs/evals.md"))
    app([draft.name if word.startswith("mined-") else word for word in words], result_action="return_value")
    assert list(load_suite(mined.suite).tasks) == [draft.name]
