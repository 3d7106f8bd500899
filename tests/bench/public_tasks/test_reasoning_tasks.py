"""Exercises of others, as users ask them: judged by their own scorers, and none both taught and examined."""

import asyncio
from itertools import islice

import pytest

from bench.public_tasks.reasoning import Run, rows
from bench.public_tasks.reasoning_tasks import TASKS, ReasoningTask, is_held_out, stated


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("The GCD of 12 and 18 is 6.", "6"),
        ("4 + -9 = -5", "-5"),
        ("No, it does not follow.", "No"),
        ("yes", "Yes"),
        ("Nobody knows.", None),
        ("", None),
    ],
)
def test_what_an_answer_ends_with_is_what_it_says(answer: str, said: str | None) -> None:
    assert stated(answer) == said


def test_a_quarter_of_questions_examine() -> None:
    held_out = sum(is_held_out(f"question {number}") for number in range(2000))
    assert 420 < held_out < 580


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # of a package that it needs
@pytest.mark.parametrize("name", TASKS)
def test_questions_are_right_by_their_own_answers_and_apart(name: str) -> None:
    pytest.importorskip("reasoning_gym")
    task = ReasoningTask(name)
    taught, held_out = list(islice(task.taught(3), 200)), task.held_out(60, 3)
    assert not {each.messages for each in taught} & {each.messages for each in held_out}
    assert [each.messages for each in task.held_out(60, 3)] == [each.messages for each in held_out]
    assert asyncio.run(held_out[0].right("I cannot say.")) is False
    assert 0 < task.commonest(60, 3) < 0.9


def test_a_row_holds_where_the_gain_lies_above_chance() -> None:
    run: Run = {"name": "gcd, seed 0", "commit": "abc", "gain": [0.02, 0.2], "held_out": 128, "taught": 300}
    run |= {"seconds_taught": 600.0, "right_start": 0.2, "right_end": 0.31, "one_answer": 0.25}
    run |= {"failed_requests": 0, "lost_turns": 0, "lost_outcomes": 0}
    assert all(row.holds for row in rows([run]))
    assert [row.holds for row in rows([run | {"gain": [-0.01, 0.2], "lost_turns": 1}])] == [
        True,
        True,
        True,
        False,
        False,
    ]
