"""Accepted drafts as files of a suite: a case in TOML, or a task in Harbor's format."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from core.errors import InvalidRequest
from core.operations.drafts import Draft, DraftCase

_MOST_DEEP = 32
_TESTS = """#!/bin/bash
# The reward is 1 where the command succeeds that showed, in the session, that the work was good.
mkdir -p /logs/verifier
if {command}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def put_case(suite: Path, draft: Draft, case: DraftCase) -> Path:
    """Write the case below `suite`; return its file, or a task's folder. Raises InvalidRequest naming the field."""
    if not slug(case.name):
        raise InvalidRequest("case.name: want letters or digits", param="case.name")
    return _put_answer(suite, draft, case) if case.kind == "answer" else _put_task(suite, draft, case)


def slug(name: str) -> str:
    """Return the name as that of a file."""
    kept = "".join(character if character.isalnum() and character.isascii() else "-" for character in name.lower())
    return "-".join(part for part in kept.split("-") if part)[:60]


def _put_answer(suite: Path, draft: Draft, case: DraftCase) -> Path:
    try:
        checker = msgspec.json.decode(case.checker)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"case.checker: no JSON ({error})", param="case.checker") from error
    if not isinstance(checker, dict):
        raise InvalidRequest('case.checker: want an object, such as {"kind": "exact"}', param="case.checker")
    if checker.get("kind") == "command":  # who decides on drafts is not who may run programs on the gate's machine
        raise InvalidRequest('case.checker: "command" is for suites that are written by hand', param="case.checker")
    fields = {
        "name": case.name,
        "group": case.group,
        "messages": list(case.messages),
        "checker": checker,
        "solution": case.answer,
        "origin": f"session {draft.session_id}, turn {draft.inference_id}",
        "reuse": case.reuse,
    }
    path = suite / "cases" / f"{slug(case.name)}.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[[case]]\n" + "".join(f"{name} = {_toml(value)}\n" for name, value in fields.items()))
    return path


def _put_task(suite: Path, draft: Draft, case: DraftCase) -> Path:
    for name in ("instruction", "tests", "dockerfile"):
        if not getattr(case, name).strip():
            raise InvalidRequest(f"case.{name}: a task needs it", param=f"case.{name}")
    folder = suite / "tasks" / slug(case.name)
    metadata = {
        "category": case.group,
        "origin": f"session {draft.session_id}, turn {draft.inference_id}",
        "reuse": case.reuse,
        "repository": dict(draft.repository),
    }
    said = "".join(f"{name} = {_toml(value)}\n" for name, value in metadata.items())
    files = {
        "task.toml": f'version = "1.0"\n\n[metadata]\n{said}\n[agent]\ntimeout_sec = 900.0\n\n'
        "[verifier]\ntimeout_sec = 300.0\n",
        "instruction.md": f"{case.instruction.strip()}\n",
        "environment/Dockerfile": f"{case.dockerfile.strip()}\n",
        "tests/test.sh": _TESTS.format(command=f"bash -c {_shell(case.tests.strip())} >&2"),
        "solution/answer.txt": f"{case.answer.rstrip()}\n",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _toml(value: Any, depth: int = 0) -> str:
    """Return a value as TOML: texts as JSON has them, which TOML reads alike, but for one sign.

    Signs beyond ASCII stand for themselves: TOML knows none of JSON's pairs of escapes. Raises InvalidRequest."""
    if depth > _MOST_DEEP:
        raise InvalidRequest(f"case: nested more than {_MOST_DEEP} deep", param="case")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(str(key))} = {_toml(each, depth + 1)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each, depth + 1) for each in value) + "]"
    if value is None:
        raise InvalidRequest("case: TOML has no null", param="case")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
