"""Work counted in steps of Python instead of seconds: the same number on every machine, however busy it is."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooManySteps(AssertionError):
    pass


def steps_of(work: Callable[[], object], most: int = 2_000_000) -> int:
    """Return how many lines of Python `work` runs, each turn of a loop counted. Raises TooManySteps beyond `most`.

    What a library does in C within a line is one step."""
    steps = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        if steps > most:
            raise TooManySteps(f"more than {most} steps")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps
