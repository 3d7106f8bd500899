"""The folder of a suite that is mined: drafts, the audit of who decided what, and the cases that were accepted.

drafts/ID.json      one for each session that showed a good answer, with what became of it
audit.jsonl         a line for each decision, in order, never changed
cases/NAME.toml     accepted answers
tasks/NAME/         accepted tasks, in Harbor's format

The folder is a suite (see `serving.evals.cases`): versions are asked it where `release.evals.suite` names it, and then
its solutions are kept out of training. A case is checked before it is put in, and the draft is marked last: a decision
that was cut off before that is made again, and finds its case there."""

import fcntl
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from core.errors import ConfigError, Conflict, InvalidRequest, NotFound
from core.ids import Namespace
from core.operations.drafts import Draft, DraftCase, DraftState, Reviewed
from serving.evals.cases import load_suite
from serving.evals.mining.written import put_case, slug
from serving.evals.task_cases import files_of

_decode = msgspec.json.Decoder(Draft).decode
_encode = msgspec.json.Encoder().encode
_FIRST: dict[DraftState, int] = {"waiting": 0, "accepted": 1, "refused": 2}
_LONGEST_ID = 64


class SuiteFolder:
    """The folder, for any number of processes: one decision is made at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._drafts = folder, folder / "drafts"
        self._deciding = threading.Lock()

    def add(self, drafts: Iterable[Draft]) -> int:
        """Add drafts of sessions that there are none of yet; return how many. Nothing that was decided changes."""
        self._drafts.mkdir(parents=True, exist_ok=True)
        new = [draft for draft in drafts if not self._path(draft.draft_id).exists()]
        for draft in new:
            self._write(draft)
        return len(new)

    def listed(self, namespace: Namespace | None) -> list[Draft]:
        found = [_decode(path.read_bytes()) for path in self._drafts.glob("*.json")]
        shown = [draft for draft in found if namespace in (None, draft.namespace)]
        return sorted(shown, key=lambda draft: (_FIRST[draft.state], draft.draft_id))

    def decide(self, namespace: Namespace | None, reviewed: Reviewed) -> Draft:
        self._find(reviewed.draft_id, namespace)
        with self._deciding_alone():
            draft = self._find(reviewed.draft_id, namespace)
            if draft.state != "waiting":
                raise Conflict(
                    f"draft {draft.draft_id} was {draft.state} by {draft.decided_by}", param="draft_id", code="decided"
                )
            case = reviewed.case or draft.case
            if reviewed.verdict == "edit":
                done = msgspec.structs.replace(draft, case=case)
            else:
                file = self._accept(draft, case) if reviewed.verdict == "accept" else None
                done = msgspec.structs.replace(
                    draft,
                    case=case,
                    state="accepted" if reviewed.verdict == "accept" else "refused",
                    decided_by=reviewed.by,
                    decided_at=reviewed.at,
                    note=reviewed.note,
                    file=file,
                )
            self._tell(reviewed)
            self._write(done)
            return done

    @contextmanager
    def _deciding_alone(self) -> Iterator[None]:
        """Let no other thread decide, nor another process, which a lock of threads does not keep out."""
        with self._deciding, (self._folder / ".deciding").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _find(self, draft_id: str, namespace: Namespace | None) -> Draft:
        path, is_id = self._path(draft_id), draft_id.isalnum() and draft_id.isascii() and len(draft_id) <= _LONGEST_ID
        draft = _decode(path.read_bytes()) if is_id and path.exists() else None
        if draft is None or namespace not in (None, draft.namespace):
            raise NotFound(f"no draft {draft_id}", param="draft_id", code="unknown_draft")
        return draft

    def _accept(self, draft: Draft, case: DraftCase) -> str:
        """Put the case into the suite; return its file. Raises InvalidRequest where the suite would not be one."""
        with tempfile.TemporaryDirectory(prefix=".case-", dir=self._folder) as place:
            made = put_case(Path(place), draft, case)
            try:
                load_suite(Path(place))
            except ConfigError as error:
                raise InvalidRequest(f"case: {str(error).replace(place, '')}", param="case") from error
            target = self._folder / made.relative_to(place)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(made, target)
            elif self._is_anothers(target, draft) or _content(made) != _content(target):
                raise InvalidRequest(f"case.name: the suite has a case {slug(case.name)!r}", param="case.name")
        try:
            load_suite(self._folder)
        except ConfigError as error:
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            raise InvalidRequest(f"case: {error}", param="case") from error
        return str(target.relative_to(self._folder))

    def _is_anothers(self, target: Path, draft: Draft) -> bool:
        file = str(target.relative_to(self._folder))
        return any(each.file == file for each in self.listed(None) if each.draft_id != draft.draft_id)

    def _tell(self, reviewed: Reviewed) -> None:
        with (self._folder / "audit.jsonl").open("ab") as audit:
            audit.write(_encode(reviewed) + b"\n")
            audit.flush()
            os.fsync(audit.fileno())

    def _write(self, draft: Draft) -> None:
        path = self._path(draft.draft_id)
        aside = path.with_suffix(".partial")
        aside.write_text(json.dumps(msgspec.to_builtins(draft), indent=1) + "\n")
        aside.replace(path)

    def _path(self, draft_id: str) -> Path:
        return self._drafts / f"{draft_id}.json"


def _content(case: Path) -> dict[str, bytes]:
    """Return the files of a case by their names; of a case that is one file, its own."""
    paths = files_of(case) if case.is_dir() else [case]
    return {str(path.relative_to(case)): path.read_bytes() for path in paths}
