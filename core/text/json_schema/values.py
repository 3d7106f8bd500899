"""Values of JSON, to be compared as JSON does: 1 is 1.0, and true is no number."""

import math
from collections.abc import Callable, Hashable
from typing import Any

Key = Hashable


def key_of(value: Any, count: Callable[[], None] = lambda: None) -> Key:
    """Return a key that is the same for equal values and for no others. `count` is called for each part.

    Numbers are texts in it: a client could choose numbers that all have one hash."""
    count()
    match value:
        case int() | float() if not isinstance(value, bool):
            return "number", str(int(value)) if math.isfinite(value) and value == value // 1 else repr(value)
        case dict():
            return "object", frozenset((name, key_of(part, count)) for name, part in value.items())
        case list():
            return "array", *(key_of(part, count) for part in value)
    return value if value is None or isinstance(value, bool | str) else str(value)
