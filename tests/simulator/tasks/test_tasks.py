"""The team's tasks are many, distinct and solvable, are broken where they say so, and differ from the corpus."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.tasks import corpus as corpus_module
from simulator.tasks.corpus import write_corpus
from simulator.tasks.sampling import Kind, UserTask, sample_task, split_of
from simulator.tasks.sandbox import ForkServer, TestResult
from simulator.tasks.taste import STYLES, SessionQuality, Style, Taste, judge_fix, judge_write
from simulator.tasks.templates import TEMPLATES
from simulator.tasks.tiny import CONVERSATIONS, SEED

ENOUGH = 2000
HINTED_LINE = Style(hints=True, one_liner=True)


def run_all(codes: list[tuple[str, tuple[tuple[str, str], ...]]]) -> list[TestResult]:
    async def run() -> list[TestResult]:
        sandbox = ForkServer()
        try:
            return [await sandbox.run(code, tests) for code, tests in codes]
        finally:
            await sandbox.close()

    return asyncio.run(run())


def draw(kind: Kind, count: int, split: Any = "served", seed: int = 0) -> list[UserTask]:
    rng = random.Random(seed)
    return [sample_task(rng, kind, split) for _ in range(count)]


@pytest.mark.parametrize("kind", ["write", "fix"])
def test_there_are_enough_distinct_tasks_and_none_is_in_the_corpus(kind: Kind) -> None:
    served = {task.request for task in draw(kind, 6000)}
    corpus = {task.request for task in draw(kind, 6000, "corpus")}
    assert len(served) >= ENOUGH
    assert not served & corpus
    assert {split_of(f"{kind}|{request}") for request in served} == {"served"}


def test_no_task_of_the_whole_corpus_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus has every task that the shipped model was midtrained on, also infilled ones."""
    drawn: set[tuple[Kind, str]] = set()

    def noting(rng: random.Random, kind: Kind, split: Any = "served") -> UserTask:
        task = sample_task(rng, kind, split)
        drawn.add((kind, task.request))
        return task

    monkeypatch.setattr(corpus_module, "sample_task", noting)
    write_corpus(tmp_path, CONVERSATIONS, SEED)
    assert len(drawn) > 2 * ENOUGH
    assert {split_of(f"{kind}|{request}") for kind, request in drawn} == {"corpus"}
    served = {(task.kind, task.request) for kind in ("write", "fix") for task in draw(kind, 6000)}
    assert not served & drawn


def test_tasks_have_an_identity_and_a_seed() -> None:
    tasks = draw("fix", 500)
    assert tasks == draw("fix", 500)
    assert tasks != draw("fix", 500, seed=1)
    by_id = {task.task_id: (task.request, task.source_lines) for task in tasks}
    assert all(by_id[task.task_id] == (task.request, task.source_lines) for task in tasks)


def one_of_each(kind: Kind, key: Callable[[UserTask], Any]) -> list[UserTask]:
    return list({key(task): task for task in draw(kind, 3000)}.values())


def test_every_template_is_right_in_all_idioms() -> None:
    tasks = one_of_each("write", lambda task: TEMPLATES.index(task.template))
    assert len(tasks) == len(TEMPLATES)
    idioms = [(hints, one_liner) for hints in (False, True) for one_liner in (False, True)]
    codes = [(task.solution(hints=h, one_liner=o), task.tests) for task in tasks for h, o in idioms]
    assert [code for (code, _), result in zip(codes, run_all(codes), strict=True) if not result.all_passed] == []


def test_every_bug_fails_and_its_line_mends_it() -> None:
    tasks = one_of_each("fix", lambda task: (TEMPLATES.index(task.template), task.source_lines[task.bug_line - 1]))
    bugs = sum(len(wrong) for template in TEMPLATES for wrong in template.bugs.values())
    assert len(tasks) >= bugs
    mended = [[*t.source_lines[: t.bug_line - 1], t.correct_line, *t.source_lines[t.bug_line :]] for t in tasks]
    results = run_all([("\n".join(task.source_lines), task.tests) for task in tasks])
    assert [task.source_lines for task, result in zip(tasks, results, strict=True) if result.all_passed] == []
    assert all(
        result.all_passed for result in run_all([("\n".join(m), t.tests) for m, t in zip(mended, tasks, strict=True)])
    )


@pytest.mark.parametrize("style", STYLES)
def test_taste_counts_what_is_not_as_the_team_likes_it(style: Style) -> None:
    for task in draw("write", 50):
        liked = Taste().style(task)
        mismatches = (style.hints != liked.hints) + (style.one_liner != liked.one_liner)
        quality = judge_write(task.solution(hints=style.hints, one_liner=style.one_liner), True, liked)
        assert (quality.mismatches, quality.syntax_ok, quality.good) == (mismatches, True, mismatches == 0)


def test_good_takes_tests_and_taste() -> None:
    assert not SessionQuality(syntax_ok=True, tests_pass=False, mismatches=0).good
    assert not SessionQuality(syntax_ok=True, tests_pass=True, mismatches=1).good
    assert not judge_write("def f(xs: list) -> int:\n    return 1", False, HINTED_LINE).good
    assert not judge_write("def f(", True, HINTED_LINE).syntax_ok
    assert not judge_fix("x = 1", True, done=False).good
    assert judge_fix("x = 1", True, done=True).good
