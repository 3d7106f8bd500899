"""The code in an answer, as somebody who wants to try it would copy it."""

import re

_FENCE = re.compile(r"```[a-zA-Z]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


def code_of(answer: str) -> str:
    """Return the first block of code, or the whole answer where nothing is marked as code."""
    block = _FENCE.search(answer)
    return (block[1] if block else answer).strip("\n")
