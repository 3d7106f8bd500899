"""Drafts and cases as TOML that people read, and files that are whole or not there."""

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from core.errors import ConfigError
from serving.evals.cases import DRAFTS, Case, Draft, TaskCase

_INNER = ("messages", "source", "reuse", "review", "work", "changes", "commands", "state")


def put_draft(suite: Path, draft: Draft) -> Path:
    """Write a draft. It is whole or not there."""
    return write(suite / DRAFTS / f"{draft.name}.toml", draft_text(draft))


def draft_text(draft: Draft) -> str:
    return as_toml("draft", _fields(draft))


def case_text(case: Case | TaskCase) -> str:
    return as_toml("case", _fields(case), is_list=True)


def _fields(entry: Draft | Case | TaskCase) -> dict[str, Any]:
    return entry.model_dump(exclude_none=True, exclude_defaults=True) | {"reuse": _whole_reuse(entry)}


def _whole_reuse(entry: Draft | Case | TaskCase) -> dict[str, Any]:
    """Return all of it, defaults as well: it is a statement to whoever opens the file."""
    assert entry.reuse is not None
    return entry.reuse.model_dump(exclude_none=True)


def write(place: Path, text: str) -> Path:
    """Write a file. Raises ConfigError naming it, where nothing can be written."""
    partial = place.with_name(f"{place.name}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(place)
    except OSError as error:
        raise ConfigError(f"{place}: cannot be written ({error.strerror})") from error
    return place


def as_toml(table: str, fields: Mapping[str, Any], *, is_list: bool = False) -> str:
    """Return a table for people to read: long texts line by line, and what is a table in it by itself."""
    return "\n".join(_lines(table, fields, f"[[{table}]]" if is_list else f"[{table}]")) + "\n"


def _lines(table: str, fields: Mapping[str, Any], head: str) -> Iterator[str]:
    inner = {name: value for name, value in fields.items() if name in _INNER}
    yield head
    for name, value in fields.items():
        if name not in inner:
            yield f"{name} = {_text(value) if isinstance(value, str) else value_text(value)}"
    for name, value in inner.items():
        parts = [value] if isinstance(value, Mapping) else value
        for part in parts:
            yield ""
            yield from _lines(f"{table}.{name}", part, f"[{table}.{name}]" if part is value else f"[[{table}.{name}]]")


def _text(value: str) -> str:
    if "\n" not in value:
        return value_text(value)
    lines = [value_text(line)[1:-1] for line in value.split("\n")]
    return '"""\n' + "\n".join(lines) + '"""'


def value_text(value: Any) -> str:
    """Return a value as TOML has it on one line, as a checker is written in a case."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat()
        case Mapping():
            return "{ " + ", ".join(f"{_key(str(key))} = {value_text(each)}" for key, each in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(value_text, value)) + "]"
    return repr(value)


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else value_text(name)
