"""Small functions as a subject: a user runs the tests that only the user knows, and takes what passes all of them."""

from collections.abc import Iterator
from itertools import count

from simulator.functions.answers import code_of
from simulator.functions.requests import Request, Split, sample
from simulator.lessons.subject import Exercise
from simulator.tasks.sandbox import ForkServer

_ROUND = 32  # requests drawn at once
_EXAMPLE = (
    ("user", "Write a Python function `triple(n)` that returns three times n."),
    ("assistant", "```python\ndef triple(n):\n    return 3 * n\n```"),
)
"""The example that an IDE puts before each request, so that it is answered in code alone."""


class Functions:
    workload = "functions"
    max_tokens = 64
    stop = ("\n```\n",)  # a user copies the code and reads no further

    def __init__(self, sandbox: ForkServer) -> None:
        self._sandbox = sandbox

    def taught(self, seed: int) -> Iterator[Exercise]:
        for number in count():
            yield from self._exercises("taught", _ROUND, f"{seed} {number}")

    def held_out(self, count: int, seed: int) -> list[Exercise]:
        return self._exercises("held_out", count, str(seed))

    def _exercises(self, split: Split, count: int, seed: str) -> list[Exercise]:
        return [self._exercise(request) for request in sample(split, count, f"{split} {seed}")]

    def _exercise(self, request: Request) -> Exercise:
        async def right(answer: str) -> bool:
            return (await self._sandbox.run(code_of(answer), request.tests)).all_passed

        return Exercise(request.function, (*_EXAMPLE, ("user", request.text)), right)
