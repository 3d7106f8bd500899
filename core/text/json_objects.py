"""JSON that others wrote: a model its arguments, a tool its answer."""

import json
from typing import Any, NoReturn


def object_of(text: str) -> dict[str, Any] | None:
    """Return the object that the text holds; None for other text.

    None also for what is nested deeper, or has a longer number, than can be read. As RFC 8259 says, NaN and the
    infinities are no JSON. Half a surrogate pair is no character: a text that has one could be written nowhere."""
    try:
        found = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
