"""Values in a task's settings that are written in a form of their own: sizes, and variables of the host."""

import re
from collections.abc import Mapping

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([GMK])B?", re.IGNORECASE)
_MEGABYTES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def megabytes(size: str) -> int:
    """Return a size such as `2G` or `512M` in megabytes, as older tasks write memory and storage.

    Raises ValueError."""
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise ValueError(f"{size!r} is no size: write 2G, 512M or 100K")
    return int(float(match[1]) * _MEGABYTES[match[2].upper()])


def filled(template: str, lent: Mapping[str, str]) -> str:
    """Return a value with each `${NAME}` or `${NAME:-default}` taken from the variables that tasks are lent.

    Raises ValueError, with the name, for one that is not among them and has no default."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name not in lent and default is None:
            raise ValueError(f"the variable {name} is not lent to tasks, and has no default")
        return lent.get(name, default or "")

    return _VARIABLE.sub(value, template)
