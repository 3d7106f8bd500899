"""Tasks of a suite: found, digested whole, their solutions known, and run by whoever can."""

import asyncio
from pathlib import Path

import pytest

from core.errors import ConfigError
from serving.evals.cases import Case, load_suite
from serving.evals.gate import Bounds, evaluate
from serving.evals.run import Attempter, Limits, run_suite
from serving.evals.task_cases import TaskCase

CASE = '[[case]]\nname = "sum"\nprompt = "?"\nchecker = { kind = "exact", text = "5" }\n'
PATCH = """#!/bin/bash
git apply <<'EOF'
--- a/total.py
+++ b/total.py
@@ -1,2 +1,3 @@
 def total(xs):
-    return 0
+    result = sum(xs)
+    return result
EOF
"""


def put_task(suite: Path, name: str, metadata: str = "") -> Path:
    folder = suite / name
    (folder / "tests").mkdir(parents=True)
    (folder / "solution").mkdir()
    (folder / "task.toml").write_text(f'version = "1.0"\n[metadata]\n{metadata}\n[agent]\ntimeout_sec = 60.0\n')
    (folder / "instruction.md").write_text("Sum a list.")
    (folder / "tests" / "test.sh").write_text("exit 0\n")
    (folder / "tests" / "cases.toml").write_text("[[case]]\nof = 'the tests, and no case'\n")
    (folder / "solution" / "solve.sh").write_text(PATCH)
    return folder


async def says_five(case: Case) -> str:
    return "5"


def scoring(worth: float) -> Attempter:
    async def attempt(case: TaskCase) -> float:
        return worth

    return attempt


def test_tasks_stand_beside_cases_with_their_group_and_weight(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(CASE)
    put_task(tmp_path, "one", 'category = "web"\nweight = 2.0\ndifficulty = "easy"')
    put_task(tmp_path / "more", "two")
    suite = load_suite(tmp_path)
    assert suite.has_tasks
    found = [(case.name, case.group, case.weight) for case in suite.cases]
    assert found == [("sum", "all", 1.0), ("more/two", "tasks", 1.0), ("one", "web", 2.0)]


def test_one_task_alone_is_a_suite(tmp_path: Path) -> None:
    assert [case.name for case in load_suite(put_task(tmp_path, "one")).cases] == ["one"]


def test_a_task_is_digested_with_all_its_files(tmp_path: Path) -> None:
    folder = put_task(tmp_path, "one")
    first = load_suite(tmp_path).digest
    (folder / "tests" / "test.sh").write_text("exit 1\n")
    assert load_suite(tmp_path).digest != first


def test_a_solution_is_known_as_it_stands_and_by_the_lines_that_it_adds(tmp_path: Path) -> None:
    folder = put_task(tmp_path, "one")
    (folder / "solution" / "picture.png").write_bytes(b"\x89PNG\xff")
    added = "    result = sum(xs)\n    return result"
    assert load_suite(tmp_path).solutions() == {
        "one/solution/solve.sh": PATCH.strip(),
        "one/solution/solve.sh, added": added,
    }


@pytest.mark.parametrize(
    ("metadata", "said"),
    [("weight = 0", "metadata.weight"), ('category = ""', "metadata.category"), ("=", "Invalid")],
)
def test_a_mistake_names_file_and_field(tmp_path: Path, metadata: str, said: str) -> None:
    put_task(tmp_path, "one", metadata)
    with pytest.raises(ConfigError, match=rf"one/task\.toml: .*{said}"):
        load_suite(tmp_path)


def test_a_task_without_tests_judges_nothing(tmp_path: Path) -> None:
    folder = put_task(tmp_path, "one")
    (folder / "instruction.md").unlink()
    with pytest.raises(ConfigError, match=r"one: no instruction\.md"):
        load_suite(tmp_path)


def test_tasks_are_worth_what_was_left_and_without_an_agent_they_have_no_score(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(CASE)
    put_task(tmp_path, "one")
    suite = load_suite(tmp_path)
    ran = asyncio.run(run_suite(suite, says_five, Limits(), scoring(0.5)))
    assert [result.score for result in ran] == [1.0, 0.5]
    without = asyncio.run(run_suite(suite, says_five, Limits()))
    assert [result.score for result in without] == [1.0, None]
    assert "none works on it here" in without[1].why


def test_a_version_that_leaves_worse_work_is_refused_and_one_that_nobody_tried_is_held(tmp_path: Path) -> None:
    for number in range(8):
        put_task(tmp_path, f"task-{number}")
    suite, limits, bounds = load_suite(tmp_path), Limits(), Bounds()
    worse = asyncio.run(evaluate(suite, says_five, says_five, limits, bounds, (scoring(0.0), scoring(1.0))))
    assert worse.action == "refuse", worse.why
    untried = asyncio.run(evaluate(suite, says_five, says_five, limits, bounds))
    assert untried.action == "hold", untried.why
