"""Questions of reasoning-gym are tasks, and its scorer judges what the agent wrote."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from environments.errors import TaskError
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.adapters.reasoning import Dataset, reasoning_tasks
from environments.tasks.adapters.scoring import is_plain
from environments.tasks.opening import open_sandbox
from environments.tasks.task import Task
from environments.tasks.verifying import verify

reasoning_gym = pytest.importorskip("reasoning_gym")
LEGS = Dataset("leg_counting", size=3, seed=1, config={"max_animals": 4})


def judged(task: Task, answer: bytes | None, images: Path) -> float:
    async def run() -> float:
        sandboxes = Bubblewrap(images / "sandboxes")
        try:
            async with await open_sandbox(task, sandboxes) as sandbox:
                if answer is not None:
                    assert task.answer is not None
                    await sandbox.write(task.answer.file, answer)
                return (await verify(task, sandbox, sandboxes)).reward
        finally:
            await sandboxes.close()

    return asyncio.run(run())


def test_entries_are_tasks_that_are_always_the_same() -> None:
    tasks = reasoning_tasks(LEGS)
    assert [task.name for task in tasks] == [f"reasoning-gym/leg_counting/{index}" for index in range(3)]
    assert tasks == reasoning_tasks(LEGS)
    assert len({task.digest for task in (*tasks, *reasoning_tasks(Dataset("leg_counting", 3, 2)))}) == 6
    assert "how many legs" in tasks[0].instruction
    assert "/workspace/answer.txt" in tasks[0].instruction


@pytest.mark.deep  # the scorer imports the whole library, which takes seconds
def test_the_scorer_of_the_dataset_judges(images: Path) -> None:
    entries = reasoning_gym.create_dataset("leg_counting", size=3, seed=1, max_animals=4)
    tasks = reasoning_tasks(LEGS)
    right = str(entries[1]["answer"]).encode()
    assert judged(tasks[1], right + b"\n", images) == 1
    assert judged(tasks[1], b"7", images) < 1
    assert judged(tasks[1], None, images) == 0
    assert judged(tasks[1], b"\xff", images) == 0


@pytest.mark.parametrize(
    ("name", "config"), [("no_such", {}), ("leg_counting", {"legs": 3}), ("leg_counting", {"max_animals": 0})]
)
def test_what_the_library_does_not_know_is_told_of(name: str, config: dict[str, int]) -> None:
    with pytest.raises(TaskError, match=name):
        reasoning_tasks(Dataset(name, 2, 0, config))


PLAIN = [
    "42",
    "[[0, 1], [1, 0]]",
    "1 2 3",
    "x! + 1",
    "x**2/2 + C",
    "log(x) - 3*exp(x)",
    "A B C",
    "-1.5",
    "['a', 'b']",
    "(1 + 2) * 4",
]
PROGRAMS = [
    "__import__('os').system('true')",
    "[print('score 1.0'), exit()]",
    "().__class__.__base__",
    "(lambda: 1)()",
    "open('x').read()",
    "[n for n in (1,)]",
    "f'{exit()}'",
    "x.y",
    'sin("().__class__.__base__.__subclasses__()")',
    "sqrt(['x.y()'])",
    "exp(b'x.y()')",
    r"log('x.y\x28)')",
    "5! + print('score 1.0') + exit()",
]


@pytest.mark.parametrize("given", PLAIN)
def test_expressions_are_plain(given: str) -> None:
    assert is_plain(given)


@pytest.mark.parametrize("given", PROGRAMS)
def test_programs_are_not(given: str) -> None:
    assert not is_plain(given)


def test_a_program_for_an_answer_runs_nowhere_and_gets_nothing(images: Path, tmp_path: Path) -> None:
    task = reasoning_tasks(Dataset("spiral_matrix", 1, 1))[0]
    touched = tmp_path / "touched"
    forged = f"[__import__('pathlib').Path({str(touched)!r}).touch(), print('score 1.0'), __import__('os')._exit(0)]"
    assert judged(task, forged.encode(), images) == 0
    assert not touched.exists()


@pytest.mark.deep
def test_a_scorer_that_cannot_read_an_answer_gives_nothing(images: Path) -> None:
    task = reasoning_tasks(Dataset("prime_factorization", 1, 1))[0]
    assert judged(task, b"x y z", images) == 0


@pytest.mark.deep  # the scorer's whole time, twice
@pytest.mark.parametrize(("name", "answer"), [("countdown", b"9**9**9"), ("polynomial_multiplication", b"'''x")])
def test_an_answer_that_brings_its_scorer_down_gets_nothing(images: Path, name: str, answer: bytes) -> None:
    (task,) = reasoning_tasks(Dataset(name, 1, 1))
    # Time for the dataset's own answer: where the scorer is still being imported at its end, nothing is judged.
    assert judged(replace(task, verifier_timeout_seconds=20.0), answer, images) == 0
