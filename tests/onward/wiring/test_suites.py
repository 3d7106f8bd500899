"""Suites of the settings: what is kept out follows their files, and rollouts leave out tasks that tell a case."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from logged_world import START
from rollouts_world import task
from task_folders import write_task

from core.errors import ConfigError
from core.settings import LearnerSettings, Settings
from environments.rollouts.plan import RolloutPlan, TaskSet
from environments.rollouts.workshop import Source, Workshop
from onward.wiring import rollouts
from onward.wiring.suites import kept_out
from onward.wiring.suites.kept_out import WatchedSuites
from serving.evals import cases
from serving.evals.cases import CaseMessage, Draft, Origin, Reuse
from serving.evals.drafts.written import put_draft

SOLUTION = "def total(xs):\n    result = 0\n    for x in xs:\n        result += x\n    return result"
ASKS = "Write a Python function that sums what a list holds."


def suite(directory: Path, **solutions: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name, solution in solutions.items():
        case = f'[[case]]\nname = "{name}"\nprompt = "{ASKS}"\nsolution = """\n{solution}"""\n'
        (directory / f"{name}.toml").write_text(case + 'checker = { kind = "contains", all = ["def"] }\n')
    return directory


def draft() -> Draft:
    source = Origin(session="s", turn="t", versions=(), received_at=START, reward=1.0, reward_spec="r", edited=False)
    asked = (CaseMessage(role="user", content=ASKS),)
    return Draft(name="mined-1", messages=asked, solution="print(1)", source=source, reuse=Reuse(namespace="acme"))


def settings_of(*suites: Path) -> Settings:
    given = {"admission": {"keep_out": [str(each) for each in suites]}}
    return Settings(learner=LearnerSettings.model_validate(given))


def test_what_is_kept_out_follows_the_files_and_survives_a_broken_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = suite(tmp_path / "a", total=SOLUTION), suite(tmp_path / "b", other="print('hello')")
    watched = WatchedSuites(settings_of(first, second).learner)
    known = watched()
    assert [(each.suite, sorted(each.solutions)) for each in known.suites] == [
        (str(first), ["total"]),
        (str(second), ["other"]),
    ]
    assert watched() is known, "nothing has changed: nothing is read"
    suite(second, more="print('more')")
    assert sorted(watched().suites[1].solutions) == ["more", "other"]
    broken = second / "more.toml"
    broken.write_text("[[case")
    assert sorted(watched().suites[1].solutions) == ["more", "other"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert f"{broken}: " in caplog.text
    assert sorted(watched().suites[1].solutions) == ["more", "other"]
    assert len(caplog.records) == 1, "said once"
    os.unlink(broken)
    assert sorted(watched().suites[1].solutions) == ["other"]
    put_draft(second, draft())
    assert sorted(watched().suites[1].solutions) == ["drafts/mined-1", "other"]
    os.unlink(second / "other.toml")
    assert list(watched().suites[1].solutions) == ["drafts/mined-1"], "a suite of drafts alone is kept out, too"
    with pytest.raises(ConfigError, match="nowhere: no case files"):
        WatchedSuites(settings_of(tmp_path / "nowhere").learner)


def test_what_is_written_while_suites_are_read_is_read_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a suite, after it could not be read, and of a task outside of it; and a folder may vanish meanwhile."""
    solves = write_task(tmp_path / "work", files={"solution/solve.sh": "echo one"}) / "solution" / "solve.sh"
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "cases.toml").write_text('[[case]]\nname = "worked"\ntask = "../work"\n')
    to_write: list[tuple[str, Path, str]] = []  # after whom

    def written_after(name: str) -> None:
        reads = getattr(kept_out, name)

        def read_and_write(given: Any) -> Any:
            try:
                return reads(given)
            finally:
                for each in [each for each in to_write if each[0] == name]:
                    each[1].write_text(each[2])
                    to_write.remove(each)

        monkeypatch.setattr(kept_out, name, read_and_write)

    written_after("load_suites")
    written_after("kept_out_of")
    watched = WatchedSuites(settings_of(tmp_path / "suite").learner)
    solves.write_text("echo one two")
    to_write.append(("kept_out_of", solves, "echo one two three"))
    watched()
    assert watched().solutions == ["echo one two three"]
    half = tmp_path / "suite" / "more.toml"
    half.write_text("[[case")
    whole = suite(tmp_path / "another", more="print('more')") / "more.toml"
    to_write.append(("load_suites", half, whole.read_text()))
    assert watched().solutions == ["echo one two three"]
    assert sorted(watched().solutions) == ["echo one two three", "print('more')"]

    def vanishing(_: Any) -> Any:
        raise FileNotFoundError(2, "No such file or directory", "gone")

    half.unlink()
    for name in ("tasks_below", "solutions_of"):
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(cases, name, vanishing)
            assert len(watched().solutions) == 2, name
    assert watched().solutions == ["echo one two three"]


def planned(monkeypatch: pytest.MonkeyPatch, settings: Settings, *sets: TaskSet) -> RolloutPlan:
    async def task_sets(_workshop: Workshop) -> tuple[TaskSet, ...]:
        return sets

    monkeypatch.setattr(rollouts, "task_sets", task_sets)
    workshop: Any = Workshop((Source("own", ()),), Path("unused"))
    return asyncio.run(rollouts.plan_of(workshop, settings, "http://127.0.0.1:1/v1"))


def test_rollouts_leave_out_the_tasks_that_tell_a_case_and_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution" / "solve.sh").write_text(f"#!/bin/sh\ncat >a.py <<EOF\n{SOLUTION}\nEOF\n")
    asks, solves = task("asks", ASKS.replace("holds", "has")), task("solves", solution=tmp_path / "solution")
    other = task("other", "Sort a list.")
    sets = TaskSet("mixed", (asks, other, solves), share=3.0), TaskSet("fine", (task("another", "Count words."),))
    settings = settings_of(suite(tmp_path / "suite", total=SOLUTION))
    plan = planned(monkeypatch, settings, *sets)
    assert [(each.name, each.share, [one.name for one in each.tasks]) for each in plan.sets] == [
        ("mixed", 3.0, ["other"]),
        ("fine", 1.0, ["another"]),
    ]
    place = tmp_path / "suite"
    assert [record.message for record in caplog.records] == [
        f"task set mixed: asks is left out: it has the same prompt as the case 'total' of {place}",
        f"task set mixed: solves is left out: it has the same solution as the case 'total' of {place}",
    ]
    with pytest.raises(ConfigError, match=r"rollouts\.task_sets\.mixed: each of its tasks tells a case that"):
        planned(monkeypatch, settings, TaskSet("mixed", (asks, solves)))
    assert planned(monkeypatch, Settings(), *sets).sets == sets


def test_a_task_that_is_a_case_is_told_by_its_instruction_and_kept_out_as_its_solution_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task lies outside of the suite, and its files are watched there."""
    solves = write_task(tmp_path / "work", files={"solution/solve.sh": "echo one two three"}) / "solution" / "solve.sh"
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "cases.toml").write_text('[[case]]\nname = "worked"\ntask = "../work"\n')
    settings = settings_of(tmp_path / "suite")
    watched = WatchedSuites(settings.learner)
    assert watched().solutions == ["echo one two three"]
    solves.write_text("echo one two three four")
    assert watched().solutions == ["echo one two three four"]
    asks = task("it", (tmp_path / "work" / "instruction.md").read_text())
    plan = planned(monkeypatch, settings, TaskSet("own", (asks, task("other", "Sort a list of words."))))
    assert [each.name for each in plan.sets[0].tasks] == ["other"]
