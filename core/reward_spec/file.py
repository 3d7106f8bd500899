"""The file, and where in it a mistake stands."""

import tomllib
from collections import Counter
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from core.errors import ConfigError
from core.reward_spec.rules import RewardSpec, said
from core.text.patterns import Pattern

_HEADER = Pattern(r"^\s*(\[\[?)\s*([^\]#]+?)\s*\]")
_ENTRY = Pattern(r"""^\s*([A-Za-z0-9_.'" -]+?)\s*=""")
KeyPath = tuple[str | int, ...]


def load_reward_spec(path: Path) -> RewardSpec:
    """Load a reward spec. Raises ConfigError naming the file, the line and the entry."""
    try:
        text = path.read_text()
        return RewardSpec.model_validate(tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no UTF-8 ({error.reason})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        lines = _lines(text)
        mistakes = [f"{_where(lines, _place(mistake))}{said(mistake)}" for mistake in error.errors()]
        raise ConfigError(f"{path}: " + "; ".join(mistakes)) from error


def _place(mistake: ErrorDetails) -> KeyPath:
    """Return the place of a mistake; one of the whole file names it in its text, as in `clip: ...`."""
    words = said(mistake).removeprefix("file: ").partition(":")[0]
    return mistake["loc"] or tuple(int(part) if part.isdigit() else part for part in words.split("."))


def _where(lines: dict[KeyPath, int], place: KeyPath) -> str:
    """Return the line of the entry, of the table that should have it, or of its first part."""
    found = next((lines[place[:size]] for size in range(len(place), 0, -1) if place[:size] in lines), None)
    if found is None:
        found = min((line for entry, line in lines.items() if place and entry[: len(place)] == place), default=None)
    return "" if found is None else f"line {found}: "


def _lines(text: str) -> dict[KeyPath, int]:
    """Return the line of every table and entry, by its place as pydantic gives it."""
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    counts: Counter[KeyPath] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.groups(line):
            brackets, name = header[0]
            table = _named(name)
            if brackets == "[[":
                counts[table] += 1
            for size in range(1, len(table) + 1):  # a table below an array of tables belongs to its latest
                array = table[:size]
                if array in counts:
                    table = (*array, counts[array] - 1, *table[size:])
                    break
            found[table] = number
        elif entry := _ENTRY.groups(line):
            found.setdefault((*table, *_named(entry[0][0])), number)
    return found


def _named(dotted: str) -> KeyPath:
    return tuple(part.strip().strip("'\"") for part in dotted.split("."))
