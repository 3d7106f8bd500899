"""What a person decides on a draft: it becomes a case, or is put aside; and the way back from both.

Whoever decides holds the suite's folder of drafts meanwhile, so that of two who decide at once the second is told."""

import fcntl
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from core.errors import ConfigError
from serving.evals.agent_work import State
from serving.evals.cases import (
    DRAFTS,
    REJECTED,
    Case,
    CaseMessage,
    Draft,
    DraftName,
    Review,
    TaskCase,
    cases_in,
    read_drafts,
    read_suite,
)
from serving.evals.checkers import Checker, Command
from serving.evals.drafts import tasks
from serving.evals.drafts.written import case_text, draft_text, put_draft, write
from serving.evals.tasks import digest_of

Learned = Callable[[str, datetime], str | None]
"""Says which version learned from a turn since then, in words that end a sentence; None: none did."""
Unusable = Callable[[Draft], str | None]
"""Says why the session of a draft may not be used now, in words that end a sentence; None: it may."""
_checkers: TypeAdapter[Checker] = TypeAdapter(Checker)
_draft_names: TypeAdapter[str] = TypeAdapter(DraftName)
_AS_ACCEPTED = b"# As accepted: "
"""Begins the last line of a case that was a draft: the digest of what stands before it, and of its task's files."""


class Refused(ConfigError):
    """A decision that is not carried out. `code` is a word of docs/refusals.md, `field` what is at fault in it."""

    def __init__(self, said: str, *, code: str, field: str | None = None) -> None:
        super().__init__(said if field is None else f"--{field}: {said}")
        self.said, self.code, self.field = said, code, field


@dataclass(frozen=True)
class TaskEdit:
    """What a person changes in the draft of an agent's work; None: it stays as it is.

    `tests`: the numbers, from 1, of the commands that are its tests; `state`: the state from which the work began,
    where the turns do not tell it."""

    instruction: str | None = None
    tests: tuple[int, ...] | None = None
    group: str | None = None
    state: State | None = None


def accept(
    suite: Path,
    name: str,
    checker: str,
    review: Review,
    group: str | None = None,
    *,
    seen: str | None = None,
    unusable: Unusable | None = None,
) -> Path:
    """Make a draft a case of the suite, with a checker in TOML; return the case's file.

    `seen`: the digest of the file that was looked at. `unusable`: says whether its session may still be used. Raises
    Refused if the draft is gone or has changed since, if its session may no longer be used, if the checker is not one
    or finds the draft's own solution wrong, or if a case already has that name. A command is not run on the
    solution."""
    found = read_checker(checker)
    with _alone(suite):
        path, draft = _waiting(suite, name, seen)
        if draft.work is not None:
            said = f"{name} is an agent's work and takes no checker: the commands that the agent ran are its tests"
            raise Refused(said, code="invalid_checker", field="checker")
        if unusable is not None:
            _require_usable(draft, unusable)
        if not isinstance(found, Command) and not found.holds(draft.solution):
            raise Refused(f"the solution of {name} is wrong by it", code="invalid_checker", field="checker")
        place = _new_place(suite, draft)
        fields = {"name": draft.name, "messages": draft.messages, "solution": draft.solution, "checker": found}
        origin = {"source": draft.source, "reuse": draft.reuse, "review": review}
        write(place, _marked(case_text(Case.model_validate(fields | origin | ({"group": group} if group else {})))))
        path.unlink()
        return place


def accept_task(
    suite: Path, name: str, edit: TaskEdit, review: Review, unusable: Unusable, *, seen: str | None = None
) -> Path:
    """Make the draft of an agent's work a task of the suite, with a case; return the case's file.

    Raises Refused as `accept` does, and also if the state from which the work began is not known, or no test is
    left."""
    with _alone(suite):
        path, draft = _waiting(suite, name, seen)
        if draft.work is None:
            raise Refused(f"{name} is not an agent's work: give a checker", code="missing_field", field="checker")
        _require_usable(draft, unusable)
        edited = _edited(draft, edit)
        _require_state(edited)
        if not _place_of(suite, draft.name).exists():
            tasks.clear(suite, draft.name)
        place = _new_place(suite, draft)
        folder = tasks.put_task(suite, edited)
        case = tasks.written_case(edited, review=review, **({"group": edit.group} if edit.group else {}))
        text = _marked(case_text(case), digest_of(folder))
        tasks.place(suite, draft.name, folder)
        write(place, text)
        path.unlink()
        return place


def _require_usable(draft: Draft, unusable: Unusable) -> None:
    if (why := unusable(draft)) is not None:
        raise Refused(f"{draft.name} may no longer be used: {why}", code="not_usable")


def _edited(draft: Draft, edit: TaskEdit) -> Draft:
    """Return the draft with a person's changes. Raises Refused."""
    work = draft.work
    assert work is not None
    messages = draft.messages
    if edit.instruction is not None:
        if not edit.instruction.strip():
            raise Refused("say what the agent is asked to do", code="invalid_field", field="instruction")
        messages = (CaseMessage(role="user", content=edit.instruction),)
    try:
        work = work if edit.tests is None else work.choosing(edit.tests)
    except ValueError as error:
        raise Refused(str(error), code="invalid_field", field="tests") from error
    if not work.tests:
        raise Refused(f"no command of {draft.name} can be a test: reject it", code="no_tests")
    work = work if edit.state is None else work.model_copy(update={"state": edit.state})
    return draft.model_copy(update={"messages": messages, "work": work})


def _require_state(draft: Draft) -> None:
    """Raise Refused if the state from which the work began is not known, or has changed or gone since."""
    assert draft.work is not None
    state = draft.work.state
    if state is None:
        said = f"nobody knows from what state the work of {draft.name} began: no given task has the image of its turns"
        raise Refused(said, code="state_unknown")
    if not tasks.stands(state):
        raise Refused(f"{state.task} has changed since the work of {draft.name} began from it", code="state_unknown")


def _new_place(suite: Path, draft: Draft) -> Path:
    """Return the file of the case that a draft becomes. Raises Refused if the suite has a case of that name."""
    place = _place_of(suite, draft.name)
    if place.exists() or draft.name in read_suite(suite).directories:
        raise Refused(f"{suite}: there is a case {draft.name} already: reject the draft", code="case_exists")
    return place


def reject(suite: Path, name: str, why: str, review: Review, *, seen: str | None = None) -> Path:
    """Put a draft aside, with the reason. Raises Refused as `accept` does, and where there is no reason."""
    if not why.strip():
        raise Refused("say why", code="invalid_field", field="why")
    with _alone(suite):
        path, draft = _waiting(suite, name, seen)
        aside = draft.model_copy(update={"why": why, "review": review})
        place = write(path.parent / REJECTED / path.name, draft_text(aside))
        path.unlink()
        return place


def undo(suite: Path, name: str, learned: Learned, *, seen: str) -> Path:
    """Make what was decided a draft again. Raises Refused where it does not stand any more as it was decided.

    What was rejected may be learned from: once a version has, the answer is no case any more."""
    with _alone(suite):
        accepted = _place_of(suite, name)
        path, draft = _case_again(accepted) if accepted.exists() else _rejected(suite, name)
        _require_unchanged(path, seen, name)
        if draft.name in {each.name for each in read_drafts(suite / DRAFTS).values()}:
            raise Refused(f"{suite}: there is a draft {name} again", code="undo_refused")
        if draft.why is not None:
            _require_unlearned(draft, learned)
        place = put_draft(suite, draft.model_copy(update={"why": None, "review": None}))
        path.unlink()
        if path == accepted and draft.work is not None:
            tasks.remove(suite, draft.name)
        return place


def _place_of(suite: Path, name: str) -> Path:
    """Return the file of a case that was a draft of that name, which strangers may have thought of."""
    try:
        return suite / f"{_draft_names.validate_python(name)}.toml"
    except ValidationError:
        raise Refused(f"{suite}: no draft has such a name", code="unknown_draft") from None


def _marked(text: str, task: bytes = b"") -> str:
    """Return a case's text with the line by which its undoing sees that nobody has changed it since."""
    return f"{text}{_AS_ACCEPTED.decode()}{_mark(text.encode(), task)}\n"


def _mark(text: bytes, task: bytes) -> str:
    return blake3(text + task).hexdigest()


def _case_again(path: Path) -> tuple[Path, Draft]:
    content = path.read_bytes()
    case, *others = cases_in(path, content)
    if others or case.source is None or case.reuse is None or case.review is None:
        raise Refused(f"{path}: this case was not accepted from a draft", code="unknown_draft")
    text, found, mark = content.rpartition(_AS_ACCEPTED)
    if not found:
        said = f"{path}: it has no line `{_AS_ACCEPTED.decode()}…` any more, by which to see that nobody changed it"
        raise Refused(f"{said}: remove the file by hand", code="undo_refused")
    task = path.parent / case.task if isinstance(case, TaskCase) else None
    if mark.strip().decode(errors="replace") != _mark(text, b"" if task is None else digest_of(task)):
        what = "case" if task is None else "task"
        raise Refused(f"{path}: somebody has changed the {what} since it was accepted", code="undo_refused")
    if isinstance(case, TaskCase):
        return path, tasks.draft_of(path.parent / case.task)
    content_of = {"name": case.name, "messages": case.messages, "solution": case.solution}
    return path, Draft.model_validate(content_of | {"source": case.source, "reuse": case.reuse})


def _rejected(suite: Path, name: str) -> tuple[Path, Draft]:
    for path, draft in read_drafts(suite / DRAFTS / REJECTED).items():
        if draft.name == name:
            return path, draft
    raise Refused(f"{suite}: no decision on a draft {name} stands", code="unknown_draft")


def _require_unlearned(draft: Draft, learned: Learned) -> None:
    if draft.review is None:
        said = f"nobody wrote down when {draft.name} was rejected: its answer may have been learned since"
        raise Refused(said, code="undo_refused")
    turns = (draft.source.turn, *(() if draft.work is None else draft.work.turns))
    found = (learned(turn, draft.review.at) for turn in dict.fromkeys(turns))
    if (by := next(filter(None, found), None)) is not None:
        raise Refused(f"{draft.name} was rejected, and its answer is no case any more: {by}", code="undo_refused")


def read_checker(text: str) -> Checker:
    """Read a checker as a case has it: `{ kind = "contains", all = ["sum("] }`. Raises Refused."""
    try:
        found = tomllib.loads(f"checker = {text}")
        if found.keys() != {"checker"}:
            raise Refused("want one table on one line", code="invalid_checker", field="checker")
        return _checkers.validate_python(found["checker"])
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        said = f'want what a case has, {{ kind = "exact", text = "5" }}: {error}'
        raise Refused(said, code="invalid_checker", field="checker") from error
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in error.errors())
        raise Refused(said, code="invalid_checker", field="checker") from error


def seen_of(content: bytes) -> str:
    """Return the digest by which a decision says what was looked at."""
    return blake3(content).hexdigest()


def _waiting(suite: Path, name: str, seen: str | None) -> tuple[Path, Draft]:
    drafts = read_drafts(suite / DRAFTS)
    for path, draft in drafts.items():
        if draft.name == name:
            if seen is not None:
                _require_unchanged(path, seen, name)
            return path, draft
    if (decided := _what_became_of(suite, name)) is not None:
        raise Refused(decided, code="draft_decided")
    raise Refused(f"{suite}: no draft {name}: there are {_names(drafts)}", code="unknown_draft")


def _names(drafts: Mapping[Path, Draft]) -> str:
    return ", ".join(draft.name for draft in drafts.values()) or "none"


def _require_unchanged(path: Path, seen: str, name: str) -> None:
    if seen_of(path.read_bytes()) != seen:
        raise Refused(f"{name} has changed since it was looked at: look at it again", code="draft_changed")


def _what_became_of(suite: Path, name: str) -> str | None:
    """Return who decided on a draft before, in words; None where nobody did."""
    place = _place_of(suite, name)
    for case in cases_in(place, place.read_bytes()) if place.exists() else ():
        if case.review is not None:
            return f"{name} is decided: {case.review.by} accepted it at {case.review.at:%Y-%m-%d %H:%M:%S}"
    for draft in read_drafts(suite / DRAFTS / REJECTED).values():
        if draft.name == name:
            by = "" if draft.review is None else f"{draft.review.by} at {draft.review.at:%Y-%m-%d %H:%M:%S}, "
            return f"{name} is decided: it was rejected, {by}because: {draft.why}"
    return None


@contextmanager
def _alone(suite: Path) -> Iterator[None]:
    """Hold the folder of drafts against everybody else who decides, in whichever process. The lock ends with it."""
    try:
        folder = os.open(suite / DRAFTS, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise Refused(f"{suite}: it has no drafts", code="unknown_draft") from None
    except OSError as error:
        raise ConfigError(f"{suite / DRAFTS}: cannot be opened ({error.strerror})") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
