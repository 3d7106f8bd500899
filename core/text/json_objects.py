"""JSON that others wrote: a model its arguments, a tool its answer."""

import json
from typing import Any, NoReturn


def object_of(text: str) -> dict[str, Any] | None:
    """The object that the text is; None where it is none, or is nested deeper, or has a longer number, than can be
    read. As of RFC 8259: NaN and the infinities are no JSON. Nor is half a surrogate pair a character: what has one can
    be written nowhere."""
    try:
        found = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
