"""Drafts of cases: `SUITE/drafts/NAME.toml`, each of one session, until a person accepts or rejects it.

    [draft]
    name = "…"
    solution = "…"          kept out of training from the moment that the file is there
    [[draft.messages]]      as in a case
    [draft.source]          the turn, and what became of its answer
    [draft.reuse]           who let it be used, and for what

No run asks drafts. What was rejected lies in `SUITE/drafts/rejected` with the reason, and is not drafted again."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from core.errors import ConfigError
from serving.evals.cases import DRAFTS, REJECTED, Case, Draft, read_suite
from serving.evals.checkers import Checker, Command

_checkers: TypeAdapter[Checker] = TypeAdapter(Checker)


def put_draft(suite: Path, draft: Draft) -> Path:
    """Write a draft. It is whole or not there."""
    return _write(suite / DRAFTS / f"{draft.name}.toml", as_toml("draft", _fields(draft)))


def accept(suite: Path, name: str, checker: str, group: str | None = None) -> Path:
    """Make a draft a case of the suite, with a checker in TOML; return the case's file.

    Raises ConfigError where there is no such draft, the checker is none or finds the draft's own solution wrong, or a
    case has that name already. What a command would say of the solution is not tried."""
    path, draft = _find(suite, name)
    found = read_checker(checker)
    if not isinstance(found, Command) and not found.holds(draft.solution):
        raise ConfigError(f"--checker: the solution of {name} is wrong by it")
    place = suite / f"{draft.name}.toml"
    if place.exists() or draft.name in read_suite(suite).directories:
        raise ConfigError(f"{suite}: there is a case {draft.name} already: reject the draft")
    fields = {"name": draft.name, "messages": draft.messages, "solution": draft.solution, "checker": found}
    case = Case.model_validate(
        fields | {"source": draft.source, "reuse": draft.reuse} | ({"group": group} if group else {})
    )
    _write(place, as_toml("case", _fields(case), is_list=True))
    path.unlink()
    return place


def reject(suite: Path, name: str, why: str) -> Path:
    """Put a draft aside for good, with the reason. Raises ConfigError where there is no such draft, or no reason."""
    if not why.strip():
        raise ConfigError("--why: say why")
    path, draft = _find(suite, name)
    place = _write(path.parent / REJECTED / path.name, as_toml("draft", _fields(draft) | {"why": why}))
    path.unlink()
    return place


def read_checker(text: str) -> Checker:
    """Read a checker as a case has it: `{ kind = "contains", all = ["sum("] }`. Raises ConfigError."""
    try:
        return _checkers.validate_python(tomllib.loads(f"checker = {text}")["checker"])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f'--checker {text}: want what a case has: {{ kind = "exact", text = "5" }}: {error}'
        ) from error
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"--checker: {said}") from error


def _find(suite: Path, name: str) -> tuple[Path, Draft]:
    drafts = read_suite(suite).drafts
    for path, draft in drafts.items():
        if draft.name == name:
            return path, draft
    raise ConfigError(f"{suite}: no draft {name}: there are {', '.join(d.name for d in drafts.values()) or 'none'}")


def _fields(entry: Draft | Case) -> dict[str, Any]:
    return entry.model_dump(exclude_none=True, exclude_defaults=True) | {"reuse": _whole_reuse(entry)}


def _whole_reuse(entry: Draft | Case) -> dict[str, Any]:
    """Return all of it, defaults as well: it is a statement to whoever opens the file."""
    assert entry.reuse is not None
    return entry.reuse.model_dump(exclude_none=True)


def _write(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f"{place.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(place)
    return place


# ------------------------------------------------------------------------------------------------ TOML


def as_toml(table: str, fields: Mapping[str, Any], *, is_list: bool = False) -> str:
    """Return a table for people to read: long texts line by line, and messages, source and reuse by themselves."""
    return "\n".join(_lines(table, fields, f"[[{table}]]" if is_list else f"[{table}]")) + "\n"


def _lines(table: str, fields: Mapping[str, Any], head: str) -> Iterator[str]:
    inner = {name: value for name, value in fields.items() if name in ("messages", "source", "reuse")}
    yield head
    for name, value in fields.items():
        if name not in inner:
            yield f"{name} = {_text(value) if isinstance(value, str) else _value(value)}"
    for name, value in inner.items():
        parts = [value] if isinstance(value, Mapping) else value
        for part in parts:
            yield ""
            yield from _lines(f"{table}.{name}", part, f"[{table}.{name}]" if part is value else f"[[{table}.{name}]]")


def _text(value: str) -> str:
    if "\n" not in value:
        return _value(value)
    lines = [_value(line)[1:-1] for line in value.split("\n")]
    return '"""\n' + "\n".join(lines) + '"""'


def _value(value: Any) -> str:
    """Return a value as TOML has it on one line."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat()
        case Mapping():
            return "{ " + ", ".join(f"{_value(str(key))} = {_value(each)}" for key, each in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
