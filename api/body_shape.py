"""How many values a JSON text has, without making any of them: what a body costs goes by these, not by its bytes."""

import re

from core.errors import TooLarge

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # matches at each quote, and never goes back: one pass


def count_values(raw: bytes) -> int:
    """At least as many as there are; texts that are no JSON get some number, too."""
    bare = _STRINGS.sub(b"", raw)
    return 1 + sum(map(bare.count, (b",", b"[", b"{")))


def check_values(raw: bytes, most: int) -> None:
    """Raises TooLarge."""
    if count_values(raw) > most:
        raise TooLarge(f"the body holds more than {most} JSON values", code="too_many_values")
