"""Erasure in a suite that is mined: drafts of erased sessions go, with the cases that they became.

The audit keeps that a decision was made, by whom and when, and loses what was decided on."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from core.ids import SessionId
from core.operations.drafts import Draft
from core.operations.erasures import Erasure, Step
from core.records.erasing import digest_of

_decode = msgspec.json.Decoder(Draft).decode
_AUDIT = "audit.jsonl"


class InDrafts:
    """The drafts and cases of one suite."""

    name = "drafts"

    def __init__(self, folder: Path | None) -> None:
        """None: there is no such suite."""
        self._folder = folder

    def erase(self, order: Erasure) -> Step:
        if self._folder is None:
            return Step()
        sessions, gone, cases = frozenset[SessionId](order.sessions), list[str](), 0
        for path in sorted((self._folder / "drafts").glob("*.json")):
            draft = _decode(path.read_bytes())
            if draft.namespace == order.namespace and draft.session_id in sessions:
                gone.append(draft.draft_id)
                cases += _delete(self._folder, draft.file)
        self._redo_audit(set(gone))
        for name in gone:  # last: by them the rest is found again after a crash
            (self._folder / "drafts" / f"{name}.json").unlink()
        before = order.steps.get(self.name, Step()).removed
        counts = {"drafts": max(len(gone), before.get("drafts", 0)), "cases": max(cases, before.get("cases", 0))}
        return Step(removed={name: count for name, count in counts.items() if count}, digest=digest_of(gone))

    def _redo_audit(self, gone: set[str]) -> None:
        assert self._folder is not None
        audit = self._folder / _AUDIT
        if not gone or not audit.exists():
            return
        lines = [_left(json.loads(line), gone) for line in audit.read_text().splitlines()]
        aside = audit.with_suffix(".partial")
        with aside.open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(audit)


def _delete(folder: Path, name: str | None) -> bool:
    path = None if name is None else folder / name
    if path is None or not path.exists():
        return False
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return True


def _left(line: dict[str, Any], gone: set[str]) -> dict[str, Any]:
    return {**line, "case": None, "note": None} if line["draft_id"] in gone else line
