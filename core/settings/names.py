"""Names of settings: where they stand, and what somebody probably meant."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from core.errors import ConfigError


def place(values: dict[str, Any], path: str, value: Any) -> None:
    """Put a value into nested sections. Raises ConfigError where one of them is a setting already."""
    *sections, name = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"settings: {path}: {section} is no section")
    values[name] = value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections within sections, of values by their paths (`optimizer.learning_rate`)."""
    made: dict[str, Any] = {}
    for path, value in values.items():
        place(made, path, value)
    return made


def paths(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yield the paths of all settings."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from paths(type(field.default), f"{above}{name}.")
        else:
            yield above + name


def probably_meant(path: str, known: Iterable[str]) -> str | None:
    """Return the most similar known path: as a whole, or by a name that stands in another section."""
    candidates = list(known)
    named = [each for each in candidates if each.rsplit(".", 1)[-1] == path.rsplit(".", 1)[-1]]
    return next(iter(named if len(named) == 1 else get_close_matches(path, candidates, n=1, cutoff=0.8)), None)
