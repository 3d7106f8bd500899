"""Settings for a test: a copy with some values changed."""

from collections.abc import Mapping
from typing import TypeVar

from core.section import Section
from core.settings.names import place

S = TypeVar("S", bound=Section)


def changed(settings: S, changes: Mapping[str, object]) -> S:
    """Return the settings with other values by path (`batch.turns`), validated like a file's."""
    values = settings.model_dump()
    for path, value in changes.items():
        place(values, path, value)
    return type(settings).model_validate(values)
