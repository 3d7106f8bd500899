"""What the benchmark of summaries in rollouts counts, and when it says that its goal holds."""

import json
import subprocess
from pathlib import Path

import pytest

from bench import table
from bench.environments import summary_rows
from bench.environments.long_world import write_conversations, write_tasks
from bench.environments.summaries_rollouts import Counting, Run, figures, rows
from bench.table import Row
from environments.harness import prompts
from environments.harness.harness import Work
from environments.rollouts.episode import Episode, EpisodeResult


def ended(reward: float | None, turns: int = 6) -> EpisodeResult:
    work = Work("budget", "session", ("turn",) * turns, (1,) * turns, (), "calls", 2, 900, 100)
    part = "sandbox" if reward is None else None
    verdict = "judged" if reward is not None else "infrastructure"
    return EpisodeResult(Episode("e", "task", "d", "h@1", "taught"), verdict, reward, work, 0.0, 1.0, part)


def test_rollouts_end_once_enough_turns_are_rewarded_and_failures_are_none() -> None:
    seen = Counting(most_turns=12)
    for result in (ended(1.0), ended(None)):
        seen.ended(result, again=False)
    assert (seen.turns, seen.ending.is_set()) == (6, False)
    seen.ended(ended(0.0), again=False)
    assert (seen.turns, seen.ending.is_set(), seen.right) == (12, True, 0.5)
    assert figures(seen, seen)["failures"] == {"sandbox": 2}


def run(way: str, seed: int, right: float) -> Run:
    counted = {"held_out": 48, "right_early": 0.1, "updates": 20, "turns": 640, "tokens": 900.0, "summaries": 2.0}
    return {
        "way": way,
        "seed": seed,
        "commit": "abc",
        "right": right,
        "failures": {},
        "endings": {"context": 12},
        **counted,
    }


@pytest.mark.parametrize(
    ("gains", "holds"),
    [
        pytest.param([0.3, 0.4, 0.3, 0.4, 0.3], True, id="five seeds, all above 0"),
        pytest.param([0.3, 0.4, 0.3, 0.4], False, id="four seeds"),
        pytest.param([0.3, -0.4, 0.3, 0.4, -0.3], False, id="the interval has 0 in it"),
    ],
)
def test_the_goal_wants_five_pairs_and_an_interval_above_0(gains: list[float], holds: bool) -> None:
    runs = [run("truncation", seed, 0.5) for seed in range(len(gains))]
    runs += [run("summaries", seed, 0.5 + gain) for seed, gain in enumerate(gains)]
    unpaired = run("summaries", 99, 1.0)
    told = {row.metric: row for row in rows([*runs, unpaired])}
    least = told["rollouts: least gain of summaries over truncation (95%)"]
    assert least.holds is holds
    assert told["rollouts: ended for want of room, truncation"].value == 0.25
    contexts = told["rollouts: contexts of a held-out episode, summaries"]
    assert (contexts.value, contexts.holds) == (3.0, True)
    assert least.against == f"{len(gains)} seeds, {48 * len(gains)} held-out tasks in all"


def test_rows_of_one_kind_leave_those_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (summary_rows, table):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    summary_rows.report_beside([Row("right", 0.5, "", commit="one")])
    summary_rows.report_beside([Row("rollouts: right", 0.6, "", commit="two")])
    summary_rows.report_beside([Row("right", 0.7, "", commit="three")])
    written = json.loads((tmp_path / "summaries.json").read_text())["rows"]
    assert [(row["metric"], row["value"], row["commit"]) for row in written] == [
        ("right", 0.7, "three"),
        ("rollouts: right", 0.6, "two"),
    ]


def test_the_tests_of_a_task_want_both_words_in_their_order(tmp_path: Path) -> None:
    write_tasks(tmp_path, taught=1, held_out=0, seed=0)
    task = tmp_path / "taught" / "taught-0"
    told = (task / "solution/solve.sh").read_text()
    right = told.split("'")[1]

    def verdict(content: str) -> str:
        (tmp_path / "job.py").write_text(content + "\n")
        script = (task / "tests/test.sh").read_text()
        script = script.replace("/app", str(tmp_path)).replace("/logs/verifier", str(tmp_path))
        subprocess.run(["sh", "-c", script], check=True)
        return (tmp_path / "reward.txt").read_text().strip()

    assert verdict(right) == "1"
    assert verdict("todo") == "0"
    assert verdict(right + " xs") == "0"
    _, first, second = right.split()
    assert all(first in line for line in (task / "environment/note.py").read_text().splitlines() if "for" in line)
    assert all(second in line for line in (task / "environment/log.py").read_text().splitlines() if "for" in line)


def test_conversations_ask_for_summaries_as_the_harness_does(tmp_path: Path) -> None:
    write_conversations(tmp_path / "corpus.jsonl", 40, 0, right=0.5, kinds=("first", "second", "third"))
    all_of = [json.loads(line)["messages"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    asked = [each[-1]["content"] for each in all_of if each[-2]["content"] == prompts.SUMMARISE]
    assert asked
    assert {len(summary.split()) for summary in asked} == {2, 3}
