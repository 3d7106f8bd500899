"""The draft of an agent's work becomes a task in Harbor's format, and a draft again."""

import subprocess
import sys
from pathlib import Path

import pytest
from made_drafts import BY, SUMS, agent_draft, board, draft
from made_events import completion

from core.errors import ConfigError
from core.events import ToolCall
from environments.cases.prepared import check_task
from environments.tasks.harbor.folder import read_task
from learner.sequences.resemblance import Solutions, answers_of
from serving.evals.cases import Draft, TaskCase, load_suite, read_suite
from serving.evals.drafts import tasks
from serving.evals.drafts.deciding import Refused, TaskEdit, accept, accept_task, reject, seen_of, undo
from serving.evals.drafts.written import put_draft

NOTHING = TaskEdit()


def usable(_draft: Draft) -> None:
    return None


def learned(_turn: str, _since: object) -> None:
    return None


def test_what_is_accepted_is_a_task_that_its_own_solution_solves(tmp_path: Path) -> None:
    suite, made = tmp_path / "suite", agent_draft(tmp_path / "task")
    path = put_draft(suite, made)
    assert read_suite(suite).drafts == {path: made}
    assert accept_task(suite, "mined-2", TaskEdit(group="agents"), BY, usable) == suite / "mined-2.toml"
    loaded = load_suite(suite)
    (case,) = loaded.cases
    assert isinstance(case, TaskCase)
    assert (case.group, case.source, case.reuse, loaded.drafts) == ("agents", made.source, made.reuse, {})
    folder = loaded.tasks["mined-2"]
    check_task(folder)
    task = read_task(folder)
    assert (task.instruction, task.name) == ("Repair add.\n", "mined/mined-2")
    assert (task.settings.environment.cpus, task.settings.environment.env) == (1, {"A B": "c"})
    assert (folder / "environment" / "add.py").read_text() == "def add(one, other):\n    return one - other\n"
    (artifact,) = task.settings.artifacts
    assert task.settings.verifier.separate
    assert not isinstance(artifact, str)
    assert (artifact.source, "tests" in artifact.exclude) == ("/app", True), "a version is not its own judge"
    commands = sorted(each.read_text() for each in (folder / "tests").glob("0*.sh"))
    assert commands == [
        "cd /app || exit 126\n" + said + "\n" for said in ("grep -q 'one + other' add.py", "test -f new/one.py")
    ]
    work = tmp_path / "work"
    work.mkdir()
    (work / "add.py").write_text((folder / "environment" / "add.py").read_text())
    apply = [sys.executable, "-I", str(folder / "solution" / "apply.py")]
    subprocess.run(apply, cwd=work, check=True)
    assert (work / "add.py").read_text() == 'def add(one, other):\n    return one + other  # é "x"\n'
    assert (work / "new" / "one.py").read_text() == "x = 1\n"
    again = subprocess.run(apply, cwd=work, check=False, capture_output=True, text=True)
    assert (again.returncode, "stands in add.py 0 times" in again.stderr) == (1, True)


def test_changes_are_kept_out_as_text_and_not_as_json_writes_them(tmp_path: Path) -> None:
    long = "".join(f'    if value == {number}:\n        return "{number}"\n' for number in range(9))
    change = {"kind": "edit", "path": "a.py", "old": "pass\n", "new": long}
    suite, made = tmp_path / "suite", agent_draft(tmp_path / "task", changes=(change,))
    put_draft(suite, made)
    arguments = '{"path": "a.py", "edits": [{"old": "pass\\n", "new": %s}]}'
    import json

    call = ToolCall(id="c", name="edit", arguments=arguments % json.dumps(long), index=0)
    turn = completion(tool_calls=(call,))
    for name in ("drafts/mined-2: 1", "mined-2: solution/001.txt"):
        known = Solutions(read_suite(suite).kept_out())
        assert name in [found for text in answers_of(turn) for found in known.all_resembled_by(text)]
        assert not [found for text in ("a.py", "pass") for found in known.all_resembled_by(text)]
        if name.startswith("drafts"):
            accept_task(suite, "mined-2", NOTHING, BY, usable)


def test_a_person_changes_the_request_and_chooses_tests(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    put_draft(suite, agent_draft(tmp_path / "task"))
    for edit, code, field in (
        (TaskEdit(tests=(2,)), "invalid_field", "tests"),
        (TaskEdit(tests=(4,)), "invalid_field", "tests"),
        (TaskEdit(tests=()), "invalid_field", "tests"),
        (TaskEdit(instruction=" "), "invalid_field", "instruction"),
    ):
        with pytest.raises(Refused) as refused:
            accept_task(suite, "mined-2", edit, BY, usable)
        assert (refused.value.code, refused.value.field) == (code, field)
    case = accept_task(suite, "mined-2", TaskEdit("Mend add.", (3,)), BY, usable)
    folder = suite / "tasks" / "mined-2"
    assert (folder / "instruction.md").read_text() == "Mend add.\n"
    assert [each.name for each in (folder / "tests").glob("0*.sh")] == ["001.sh"]
    seen = seen_of(case.read_bytes())
    (folder / "tests" / "001.sh").write_text("true\n")
    with pytest.raises(ConfigError, match="somebody has changed the task since"):
        undo(suite, "mined-2", learned, seen=seen)
    (folder / "tests" / "001.sh").write_text("cd /app || exit 126\ntest -f new/one.py\n")
    undo(suite, "mined-2", learned, seen=seen)
    (again,) = read_suite(suite).drafts.values()
    assert again.asked == "Mend add."
    assert again.work is not None
    assert [each.is_test for each in again.work.commands] == [False, False, True]
    assert not list(suite.glob("tasks/*")), "nothing of the task is left"


def test_what_another_build_accepted_can_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = tmp_path / "suite"
    put_draft(suite, agent_draft(tmp_path / "task"))
    with monkeypatch.context() as another:
        another.setattr(tasks, "_TEST", f"{tasks._TEST}# as it was written once\n")
        case = accept_task(suite, "mined-2", TaskEdit("Mend add.", (3,)), BY, usable)
    undo(suite, "mined-2", learned, seen=seen_of(case.read_bytes()))
    assert not list(suite.glob("tasks/*"))


def test_a_case_without_its_mark_is_left_to_people(tmp_path: Path) -> None:
    put_draft(tmp_path, draft())
    case = accept(tmp_path, "mined-1", SUMS, BY)
    case.write_text(case.read_text().rpartition("# As accepted")[0])
    with pytest.raises(Refused, match="it has no line `# As accepted: …` any more"):
        undo(tmp_path, "mined-1", learned, seen=seen_of(case.read_bytes()))


def test_a_rejected_draft_stays_rejected_once_any_of_its_changes_was_learned(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    put_draft(suite, agent_draft(tmp_path / "task", turns=("early", "t")))
    seen = seen_of(reject(suite, "mined-2", "too easy", BY).read_bytes())
    with pytest.raises(Refused, match="version 9 has learned"):
        undo(suite, "mined-2", lambda turn, _since: "version 9 has learned" if turn == "early" else None, seen=seen)
    assert undo(suite, "mined-2", learned, seen=seen)


def test_nothing_is_accepted_whose_state_is_unknown_or_that_may_not_be_used(tmp_path: Path) -> None:
    suite, task = tmp_path / "suite", tmp_path / "task"
    put_draft(suite, agent_draft(task, state=None))
    put_draft(suite, draft())

    def refused(edit: TaskEdit = NOTHING, name: str = "mined-2", why: str | None = None) -> str:
        with pytest.raises(Refused) as error:
            accept_task(suite, name, edit, BY, lambda _: why)
        return error.value.code

    assert refused() == "state_unknown"
    assert refused(why="its session may not be learned from") == "not_usable"
    assert refused(name="mined-1") == "missing_field"
    with pytest.raises(Refused, match="is an agent's work and takes no checker"):
        accept(suite, "mined-2", SUMS, BY)
    began = TaskEdit(state=tasks.state_of(task, "/app/"))
    assert tasks.state_of(task, "/") is None
    (task / "environment" / "add.py").write_text("another\n")
    assert refused(began) == "state_unknown"
    assert not list(suite.glob("*.toml"))
    accept_task(suite, "mined-2", TaskEdit(state=tasks.state_of(task, "/app")), BY, usable)


def test_a_process_killed_while_accepting_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    suite, made = tmp_path / "suite", agent_draft(tmp_path / "task")
    put_draft(suite, made)
    tasks.put_task(suite, made)
    assert read_suite(suite).cases == (), "what is being written counts for nothing"
    tasks.place(suite, "mined-2", tasks.put_task(suite, made))
    with pytest.raises(ConfigError, match="no case of the suite names it"):
        read_suite(suite)
    accept_task(suite, "mined-2", NOTHING, BY, usable)
    assert list(read_suite(suite).tasks) == ["mined-2"]


def test_a_board_shows_the_work_before_and_after_the_decision(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    shown = board(suite, agent_draft(tmp_path / "task"))
    waits = shown.get(str(suite), "mined-2", "acme")
    assert waits.work is not None
    assert [(each.path, each.by_helper) for each in waits.work.changes] == [("add.py", False), ("new/one.py", True)]
    assert [each.doubt for each in waits.work.commands] == [None, "network", None]
    assert waits.work.state == str((tmp_path / "task").resolve())
    accept_task(suite, "mined-2", NOTHING, BY, usable)
    decided = shown.get(str(suite), "mined-2", "acme")
    assert (decided.listed.state, decided.work, decided.listed.asks) == ("accepted", waits.work, "Repair add.")
    assert decided.listed.decision is not None
    assert decided.listed.decision.by == "shell:ada"
