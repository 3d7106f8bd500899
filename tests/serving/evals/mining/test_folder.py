"""The folder of a mined suite: decisions are carried out whole, told in an audit, and made once."""

import json
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import InferenceId, Namespace, SessionId
from core.operations.drafts import Draft, DraftCase, DraftKind, Reviewed, Verdict
from serving.evals.cases import Case, load_suite
from serving.evals.mining.folder import SuiteFolder
from serving.evals.task_cases import TaskCase

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CASE = DraftCase(
    name="Sum of a list",
    kind="answer",
    group="write",
    messages=({"role": "user", "content": 'Sum "these":\n\\ \x7f ü 😀 \t'},),
    instruction="Sum a list.",
    answer="def total(xs):\n    return sum(xs)",
    checker='{"kind": "contains", "all": ["total"]}',
    tests='test -f "it\'s"',
    dockerfile="FROM shop@sha256:ab",
)
DEFAULT = Namespace("default")


def draft(draft_id: str = "a1", case: DraftCase = CASE, namespace: str = "default") -> Draft:
    return Draft(
        draft_id=draft_id,
        session_id=SessionId("s"),
        inference_id=InferenceId("i"),
        namespace=Namespace(namespace),
        workload="write",
        repository={"commit": "c0ffee"},
        why="accepted True",
        case=case,
    )


def decision(verdict: Verdict, draft_id: str = "a1", case: DraftCase | None = None) -> Reviewed:
    return Reviewed(at=NOW, by="ada", draft_id=draft_id, verdict=verdict, note="why", case=case)


def changed(**fields: Any) -> DraftCase:
    return msgspec.structs.replace(CASE, **fields)


@pytest.fixture
def folder(tmp_path: Path) -> SuiteFolder:
    made = SuiteFolder(tmp_path / "suite")
    assert made.add([draft()]) == 1
    return made


def test_an_accepted_answer_is_a_case_of_the_suite(folder: SuiteFolder, tmp_path: Path) -> None:
    done = folder.decide(DEFAULT, decision("accept"))
    assert (done.state, done.decided_by, done.note, done.file) == ("accepted", "ada", "why", "cases/sum-of-a-list.toml")
    suite = load_suite(tmp_path / "suite")
    (case,) = suite.cases
    assert isinstance(case, Case)
    assert case.request() == list(CASE.messages)
    assert suite.solutions() == {CASE.name: CASE.answer}
    assert (case.origin, case.reuse) == ("session s, turn i", CASE.reuse)
    assert folder.listed(DEFAULT) == [done]


def test_an_accepted_task_is_in_harbors_format_and_its_tests_judge(folder: SuiteFolder, tmp_path: Path) -> None:
    done = folder.decide(DEFAULT, decision("accept", case=changed(kind="task")))
    assert done.file == "tasks/sum-of-a-list"
    (case,) = load_suite(tmp_path / "suite").cases
    assert isinstance(case, TaskCase)
    assert (case.name, case.group) == ("tasks/sum-of-a-list", "write")
    assert list(case.solutions().values()) == [CASE.answer]
    script = (case.folder / "tests" / "test.sh").read_text().replace("/logs/verifier", str(tmp_path / "logs"))
    for there, reward in ((False, "0"), (True, "1")):
        if there:
            (tmp_path / "it's").touch()
        subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True)
        assert (tmp_path / "logs" / "reward.txt").read_text().strip() == reward


def test_a_refused_draft_is_no_case_and_an_edited_one_waits(folder: SuiteFolder, tmp_path: Path) -> None:
    edited = folder.decide(DEFAULT, decision("edit", case=changed(group="sums")))
    assert (edited.state, edited.case.group) == ("waiting", "sums")
    assert folder.decide(DEFAULT, decision("refuse")).state == "refused"
    assert not list((tmp_path / "suite").rglob("*.toml"))
    audit = [json.loads(line) for line in (tmp_path / "suite" / "audit.jsonl").read_text().splitlines()]
    assert [(line["by"], line["verdict"]) for line in audit] == [("ada", "edit"), ("ada", "refuse")]
    assert audit[0]["case"]["group"] == "sums"


@pytest.mark.parametrize("again", ["accept", "refuse", "edit"])
def test_what_was_decided_is_decided(folder: SuiteFolder, again: Verdict) -> None:
    folder.decide(DEFAULT, decision("accept"))
    with pytest.raises(Conflict, match="accepted by ada"):
        folder.decide(DEFAULT, decision(again))


def test_of_two_processes_that_decide_at_once_one_does(
    folder: SuiteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, other = SuiteFolder._accept, SuiteFolder(tmp_path / "suite")  # as another process has it
    refused: list[str] = []

    def decide() -> None:
        try:
            other.decide(DEFAULT, decision("refuse"))
        except Conflict as conflict:
            refused.append(str(conflict))

    second = threading.Thread(target=decide)

    def slowly(self: SuiteFolder, given: Draft, case: DraftCase) -> str:
        second.start()
        second.join(0.3)  # by when it would have decided, too
        return accept(self, given, case)

    monkeypatch.setattr(SuiteFolder, "_accept", slowly)
    folder.decide(DEFAULT, decision("accept"))
    second.join()
    assert refused == ["draft a1 was accepted by ada"]
    assert len((tmp_path / "suite" / "audit.jsonl").read_text().splitlines()) == 1


def test_mining_again_changes_nothing_that_is_known(folder: SuiteFolder) -> None:
    folder.decide(DEFAULT, decision("refuse"))
    assert folder.add([draft(), draft("b2")]) == 1
    assert [(each.draft_id, each.state) for each in folder.listed(None)] == [("b2", "waiting"), ("a1", "refused")]


@pytest.mark.parametrize(
    ("case", "param"),
    [
        (changed(checker="{"), "case.checker"),
        (changed(checker="[]"), "case.checker"),
        (changed(checker='{"of": "\\ud800"}'), "case.checker"),
        (changed(checker='{"of": ' * 100_000), "case.checker"),
        (changed(checker='{"of": ' * 100 + "1" + "}" * 100), "case"),
        (changed(checker='{"kind": "contains", "all": null}'), "case"),
        (changed(checker='{"kind": "guess"}'), "case"),
        (changed(checker='{"kind": "command", "command": ["true"]}'), "case.checker"),
        (changed(messages=()), "case"),
        (changed(answer=""), "case"),
        (changed(name="!?"), "case.name"),
        (changed(kind="task", dockerfile=" "), "case.dockerfile"),
        (changed(kind="task", tests=""), "case.tests"),
    ],
)
def test_what_would_be_no_case_is_refused_by_field_and_leaves_the_suite_as_it_was(
    folder: SuiteFolder, tmp_path: Path, case: DraftCase, param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        folder.decide(DEFAULT, decision("accept", case=case))
    assert refused.value.param == param
    assert folder.listed(None)[0].state == "waiting"
    assert not list((tmp_path / "suite").rglob("*.toml"))
    assert not (tmp_path / "suite" / "audit.jsonl").exists()


def test_two_cases_of_one_name_are_refused(folder: SuiteFolder, tmp_path: Path) -> None:
    folder.add([draft("b2"), draft("c3", changed(kind="task"))])
    folder.decide(None, decision("accept"))
    with pytest.raises(InvalidRequest, match="has a case 'sum-of-a-list'"):
        folder.decide(None, decision("accept", "b2"))
    assert len(load_suite(tmp_path / "suite").cases) == 1


@pytest.mark.parametrize("kind", ["answer", "task"])
def test_a_decision_that_was_cut_off_is_made_again(folder: SuiteFolder, tmp_path: Path, kind: DraftKind) -> None:
    """As by a kill between the case and the mark, with another in the middle of a case."""
    suite, before = tmp_path / "suite", (tmp_path / "suite" / "drafts" / "a1.json").read_bytes()
    done = folder.decide(DEFAULT, decision("accept", case=changed(kind=kind)))
    (suite / "drafts" / "a1.json").write_bytes(before)
    (suite / ".case-x" / "cases").mkdir(parents=True)
    (suite / ".case-x" / "cases" / "half.toml").write_text("[[case]]\nname = ")
    assert folder.decide(DEFAULT, decision("accept", case=changed(kind=kind))) == done
    assert len(load_suite(suite).cases) == 1


def test_a_case_that_somebody_wrote_is_not_taken_for_a_drafts(folder: SuiteFolder, tmp_path: Path) -> None:
    path = tmp_path / "suite" / "cases" / "sum-of-a-list.toml"
    path.parent.mkdir()
    path.write_text('[[case]]\nname = "mine"\nprompt = "?"\nchecker = { kind = "exact", text = "5" }\n')
    with pytest.raises(InvalidRequest, match="has a case 'sum-of-a-list'"):
        folder.decide(DEFAULT, decision("accept"))
    assert "mine" in path.read_text()


@pytest.mark.parametrize("draft_id", ["zz", "../a1", "a1/../a1", "", "a" * 300])
def test_a_draft_that_is_not_there_or_anothers_is_unknown(folder: SuiteFolder, draft_id: str) -> None:
    with pytest.raises(NotFound):
        folder.decide(None, decision("accept", draft_id))
    with pytest.raises(NotFound):
        folder.decide(Namespace("other"), decision("accept"))
    assert folder.listed(Namespace("other")) == []
