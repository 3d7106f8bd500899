"""A small function that somebody wants written: how they may word it, and what tells whether it is right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

POOLS = {
    "X": ("xs", "nums", "values", "items"),  # a list of numbers
    "Y": ("ys", "others", "more", "second"),  # another one
    "W": ("words", "names", "lines", "labels"),  # a list of strings
    "S": ("s", "text", "word", "line"),  # a string
    "T": ("t", "part", "other", "piece"),  # another one
    "N": ("n", "num", "number", "value"),  # a number
    "M": ("m", "k", "limit", "step"),  # another one
}
"""The names that an argument may have, by the kind of what it stands for."""

Case = tuple[Any, ...]

_NUMBERS: Sequence[Case] = ((7,), (1,), (12,), (4,), (29,))
_LISTS = ([3, 1, 2], [5], [4, -4, 9, 4, -2], [10, 0, 7, 8, 1], [-3, -6, -9])
_WORD_LISTS = (["kiwi", "apple", "fig"], ["a"], ["pear", "banana", "Avocado", "nut"], ["ant", "be", "arc", "zebra"])
CASES: dict[str, Sequence[Case]] = {
    "X": tuple((numbers,) for numbers in _LISTS),
    "XM": (([3, 1, 2, 3], 3), ([5], 4), ([4, 6, 9, -2], 2), ([10, 0, 7, 7, 1], 1)),
    "XY": (([1, 2], [3, 2]), ([5], [5]), ([4, 0, 6], [1, 0, 2]), ([7, 7, 8], [8, 9, 7])),
    "W": tuple((words,) for words in _WORD_LISTS),
    "S": (("hello world",), ("level",), ("A bc dE",), ("Room 101",), ("zebra",)),
    "SM": (("hello", 2), ("a", 1), ("Python", 3), ("level up", 4)),
    "ST": (("banana", "an"), ("hello", "h"), ("level", "level"), ("abc", "cba"), ("cup", "x")),
    "N": _NUMBERS,
    "NM": ((7, 2), (3, 3), (12, 4), (2, 5), (10, 1)),
}
"""Arguments to try a function with, by the kinds of its arguments, where it names none of its own."""


@dataclass(frozen=True)
class Function:
    """One function.

    `wanted` words what it returns, with the arguments' names in {0} and {1}; the first of `names` is its identity."""

    names: tuple[str, ...]
    arguments: str
    wanted: tuple[str, ...]
    right: Callable[..., object]
    cases: Sequence[Case] = ()

    @property
    def identity(self) -> str:
        return self.names[0]

    def tests(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return (expression, expected repr) for a function of this name."""
        return tuple(
            (f"{name}({', '.join(map(repr, case))})", repr(self.right(*case)))
            for case in self.cases or CASES[self.arguments]
        )
