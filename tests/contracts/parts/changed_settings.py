"""Settings for a test: another's, with what it needs of its own."""

from collections.abc import Mapping
from typing import TypeVar

from core.section import Section
from core.settings.names import place

S = TypeVar("S", bound=Section)


def changed(settings: S, changes: Mapping[str, object]) -> S:
    """The settings with other values by their paths (`batch.turns`), checked as a file's are."""
    values = settings.model_dump()
    for path, value in changes.items():
        place(values, path, value)
    return type(settings).model_validate(values)
