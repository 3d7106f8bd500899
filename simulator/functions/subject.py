"""Small functions as a subject: a user runs the tests that only the user knows, and takes what passes all of them."""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from simulator.functions.function import POOLS, Function
from simulator.functions.of_lists import OF_LISTS
from simulator.functions.of_one_step import OF_ONE_STEP
from simulator.functions.of_others import OF_NUMBERS, OF_STRINGS, OF_WORDS
from simulator.lessons.subject import Exercise
from simulator.tasks.sandbox import ForkServer

Split = Literal["taught", "held_out"]

FUNCTIONS: tuple[Function, ...] = OF_LISTS + OF_STRINGS + OF_NUMBERS + OF_WORDS + OF_ONE_STEP
WORDINGS = (
    "Write a Python function `{call}` that returns {wanted}.",
    "Write `{call}` in Python: it should return {wanted}.",
    "I need a Python function `{call}`. It returns {wanted}.",
    "Please define a function `{call}` in Python which returns {wanted}.",
)
_HELD_OUT = 0.3  # the share of functions, on average


@dataclass(frozen=True)
class Request:
    """One request of a user; `tests` are (expression, expected repr), which nobody but the user sees."""

    function: str
    text: str
    tests: tuple[tuple[str, str], ...]


def split_of(function: Function) -> Split:
    """Return the split that a function belongs to, under all of its names and wordings."""
    place = hashlib.blake2b(function.identity.encode(), digest_size=4).digest()
    return "held_out" if int.from_bytes(place, "big") < _HELD_OUT * 2**32 else "taught"


def of_split(split: Split) -> list[Function]:
    return [function for function in FUNCTIONS if split_of(function) == split]


def word(function: Function, rng: random.Random) -> Request:
    """Return a request for the function, in one of many wordings."""
    name = rng.choice(function.names)
    arguments = [rng.choice(POOLS[kind]) for kind in function.arguments]
    wanted = rng.choice(function.wanted).format(*arguments)
    text = rng.choice(WORDINGS).format(call=f"{name}({', '.join(arguments)})", wanted=wanted)
    return Request(function.identity, text, function.tests(name))


def sample(split: Split, count: int, seed: str) -> list[Request]:
    """Return so many requests, going through the split's functions in turn, each time in another order."""
    rng = random.Random(seed)
    functions: list[Function] = []
    while len(functions) < count:
        functions += rng.sample(of_split(split), len(of_split(split)))
    return [word(function, rng) for function in functions[:count]]


_FENCE = re.compile(r"```[a-zA-Z]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


def code_of(answer: str) -> str:
    """Return the first block of code, or the whole answer where nothing is marked as code."""
    block = _FENCE.search(answer)
    return (block[1] if block else answer).strip("\n")


_ROUND = 32  # requests drawn at once
_EXAMPLE = (
    ("user", "Write a Python function `triple(n)` that returns three times n."),
    ("assistant", "```python\ndef triple(n):\n    return 3 * n\n```"),
)
"""The example that an IDE puts before each request, so that it is answered in code alone."""


class Functions:
    workload = "functions"
    max_tokens = 64
    stop: tuple[str, ...] = ("\n```\n",)  # a user copies the code and reads no further

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
