"""Exercises that nobody here wrote: tasks of reasoning-gym (Apache-2.0), judged by its own scorers.

A question belongs to users or to examinations by a hash of its words, so that none stands in both."""

import hashlib
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from simulator.lessons.subject import Exercise

TASKS: dict[str, dict[str, Any]] = {
    "gcd": {"min_value": 1, "max_value": 60, "max_numbers": 2},
    "syllogism": {},
    "basic_arithmetic": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "operators": ["+", "-"]},
}
"""The tasks, with what differs from their usual configuration: numbers that a small model can handle."""
_ANSWER = re.compile(r"-?\d+|\b(?:[Yy]es|[Nn]o)\b")
_PAGE = 256  # questions made at once


def stated(answer: str) -> str | None:
    """Return what an answer ends with: its last number, yes or no."""
    found = _ANSWER.findall(answer)
    return found[-1].capitalize() if found else None


def is_held_out(question: str) -> bool:
    return hashlib.blake2b(question.encode(), digest_size=1).digest()[0] < 64


class ReasoningTask:
    max_tokens = 24
    stop: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.workload = name

    def taught(self, seed: int) -> Iterator[Exercise]:
        return (self._exercise(*each) for each in self._entries(seed) if not is_held_out(each[1]["question"]))

    def held_out(self, count: int, seed: int) -> list[Exercise]:
        return [self._exercise(*each) for each in islice(self._held_out(seed), count)]

    def commonest(self, count: int, seed: int) -> float:
        """Return the share of the held-out exercises for which the same answer is right: what guessing would get."""
        answers = [str(entry["answer"]) for _, entry in islice(self._held_out(seed), count)]
        return max(answers.count(answer) for answer in set(answers)) / count

    def _held_out(self, seed: int) -> Iterator[tuple[Any, Any]]:
        return (each for each in self._entries(seed) if is_held_out(each[1]["question"]))

    def _entries(self, seed: int) -> Iterator[tuple[Any, Any]]:
        """Yield (dataset, entry) without end, other ones for each seed."""
        import reasoning_gym

        page = 0
        while True:
            made = reasoning_gym.create_dataset(
                self.workload, size=_PAGE, seed=seed * 10_007 + page, **TASKS[self.workload]
            )
            yield from ((made, entry) for entry in made)
            page += 1

    def _exercise(self, dataset: Any, entry: Any) -> Exercise:
        async def right(answer: str) -> bool:
            return bool(dataset.score_answer(stated(answer), entry) == 1.0)

        return Exercise(self.workload, (("user", entry["question"]),), right)
