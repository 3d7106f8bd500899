"""The drafts of a service's suites for whoever decides on them over HTTP: `core.ports.Drafts` upon their files."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from core.errors import ConfigError, Conflict, InvalidRequest, NotFound
from core.operations.drafts import (
    Acceptance,
    Decider,
    DraftChange,
    DraftCommand,
    DraftDecision,
    DraftedWork,
    DraftMessage,
    DraftState,
    ListedDraft,
    SuiteDrafts,
    WholeDraft,
)
from core.ports import Clock
from serving.evals.agent_work import AgentWork
from serving.evals.cases import DRAFTS, REJECTED, Case, Draft, Review, TaskCase, cases_in, draft_in
from serving.evals.checkers import Command
from serving.evals.drafts.deciding import (
    Learned,
    Refused,
    TaskEdit,
    Unusable,
    accept,
    accept_task,
    read_checker,
    reject,
    seen_of,
    undo,
)
from serving.evals.drafts.tasks import draft_of
from serving.evals.drafts.written import value_text

MOST_FILES: Final = 2000  # of drafts, of rejected ones, and of cases: each of a suite
MOST_BYTES: Final = 4 << 20  # of such a file
_MOST_PROBLEMS: Final = 20
_LONGEST_LINE: Final = 200
_EPOCH = datetime.min.replace(tzinfo=UTC)
_REVIEWED = b"[case.review]"
Kind = Literal["draft", "rejected", "case"]


@dataclass(frozen=True)
class _Known:
    """What a file said when it had this time and this size; None: nothing for a list, or why it cannot be read."""

    stamp: tuple[int, int]
    listed: ListedDraft | None
    problem: str | None = None


class Board:
    """The drafts of these suites. Files are read again where their time or size has changed."""

    def __init__(self, suites: Sequence[Path], clock: Clock, learned: Learned, unusable: Unusable) -> None:
        self._suites = {str(suite): suite for suite in suites}
        self._clock, self._learned, self._unusable = clock, learned, unusable
        self._known: dict[Path, _Known] = {}

    def listed(self, namespace: str) -> SuiteDrafts:
        known: dict[Path, _Known] = {}
        problems, unlisted = list[str](), 0
        for name, suite in self._suites.items():
            if not suite.is_dir():
                problems.append(f"{suite}: there is no such folder on this machine")
                continue
            for kind, folder in _folders(suite):
                try:
                    files = _files(folder)
                except ConfigError as error:
                    problems.append(str(error))
                    continue
                unlisted += max(0, len(files) - MOST_FILES)
                for path, stamp in files[:MOST_FILES]:
                    known[path] = self._look(name, kind, path, stamp)
        self._known = known  # what is gone is forgotten
        problems += [each.problem for each in known.values() if each.problem is not None]
        found = [each.listed for each in known.values() if each.listed and each.listed.namespace == namespace]
        waiting = sorted((each for each in found if each.state == "waiting"), key=lambda each: each.received_at)
        decided = sorted((each for each in found if each.state != "waiting"), key=_decided_at)
        return SuiteDrafts(
            suites=tuple(self._suites),
            waiting=tuple(reversed(waiting)),
            decided=tuple(reversed(decided)),
            problems=tuple(problems[:_MOST_PROBLEMS]),
            unlisted=unlisted,
        )

    def get(self, suite: str, name: str, namespace: str) -> WholeDraft:
        with _in_terms_of_requests():
            return self._find(suite, name, namespace)

    def accept(self, suite: str, name: str, given: Acceptance, who: Decider) -> WholeDraft:
        with _in_terms_of_requests():
            self._find(suite, name, who.namespace)
            if given.checker is None:
                edit = TaskEdit(given.instruction, given.tests, given.group)
                accept_task(self._suites[suite], name, edit, self._review(who), self._unusable, seen=who.seen)
            else:
                self._accept_asked(self._suites[suite], name, given, given.checker, who)
            return self._find(suite, name, who.namespace)

    def _accept_asked(self, suite: Path, name: str, given: Acceptance, checker: str, who: Decider) -> None:
        if isinstance(read_checker(checker), Command):
            said = "a command would run on the service's machines: accept it there, with `onward suite accept`"
            raise Refused(said, code="invalid_checker", field="checker")
        for field in ("instruction", "tests"):
            if getattr(given, field) is not None:
                raise Refused("an agent's work has it, and takes no checker", code="invalid_field", field=field)
        accept(suite, name, checker, self._review(who), given.group, seen=who.seen, unusable=self._unusable)

    def reject(self, suite: str, name: str, why: str, who: Decider) -> WholeDraft:
        with _in_terms_of_requests():
            self._find(suite, name, who.namespace)
            reject(self._suites[suite], name, why, self._review(who), seen=who.seen)
            return self._find(suite, name, who.namespace)

    def undo(self, suite: str, name: str, who: Decider) -> WholeDraft:
        with _in_terms_of_requests():
            self._find(suite, name, who.namespace)
            undo(self._suites[suite], name, self._learned, seen=who.seen)
            return self._find(suite, name, who.namespace)

    def _review(self, who: Decider) -> Review:
        return Review(by=who.by, at=self._clock.now())

    def _find(self, suite: str, name: str, namespace: str) -> WholeDraft:
        """Return a draft as its file is now: one that waits before one that was decided."""
        for kind, folder in _folders(self._suites[suite]) if suite in self._suites else ():
            for path, stamp in _files(folder)[:MOST_FILES]:
                listed = self._look(suite, kind, path, stamp).listed
                if listed is None or (listed.name, listed.namespace) != (name, namespace):
                    continue
                if (whole := _whole(suite, kind, path)) is not None:
                    return whole
        said = f"no draft {name} of the suite {suite}; GET /v1/drafts lists them"
        raise NotFound(said, param="name", code="unknown_draft")

    def _look(self, suite: str, kind: Kind, path: Path, stamp: tuple[int, int]) -> _Known:
        known = self._known.get(path)
        if known is not None and known.stamp == stamp:
            return known
        try:
            whole = _whole(suite, kind, path)
        except ConfigError as error:
            # whoever reads the whole suite is told what is wrong with its cases
            return _Known(stamp, None, None if kind == "case" else str(error))
        return _Known(stamp, None if whole is None else whole.listed)


def _folders(suite: Path) -> Iterator[tuple[Kind, Path]]:
    yield "draft", suite / DRAFTS
    yield "rejected", suite / DRAFTS / REJECTED
    yield "case", suite


def _files(folder: Path) -> list[tuple[Path, tuple[int, int]]]:
    """Return a folder's files of TOML by name, with what shows a change; none where it is not there.

    Raises ConfigError naming a folder that cannot be read."""
    found = []
    try:
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".toml"):
                    with suppress(FileNotFoundError):  # somebody decides on this one in this moment
                        stat = entry.stat()
                        found.append((Path(entry.path), (stat.st_mtime_ns, stat.st_size)))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from error
    return sorted(found)


def _whole(suite: str, kind: Kind, path: Path) -> WholeDraft | None:
    """Read one file. Raises ConfigError naming it; None: it is gone, or a case that was no draft."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: it has more than {MOST_BYTES >> 20} MiB")
    if kind != "case":
        return _shown(suite, draft_in(path, content), seen_of(content), "waiting" if kind == "draft" else "rejected")
    if _REVIEWED not in content:
        return None
    case, *others = cases_in(path, content)
    if others or case.name != path.stem:
        return None
    if isinstance(case, TaskCase):
        draft = draft_of(path.parent / case.task)
        accepted = draft.model_copy(update={"review": case.review})
        return _shown(suite, accepted, seen_of(content), "accepted", group=case.group)
    return _shown(suite, case, seen_of(content), "accepted")


def _shown(
    suite: str, entry: Draft | Case, seen: str, state: DraftState, *, group: str | None = None
) -> WholeDraft | None:
    if entry.source is None or entry.reuse is None or entry.solution is None:
        return None
    source, reuse = entry.source, entry.reuse
    listed = ListedDraft(
        suite=suite,
        name=entry.name,
        state=state,
        seen=seen,
        namespace=reuse.namespace,
        asks=next(iter(entry.asked.strip().splitlines()), "")[:_LONGEST_LINE],
        received_at=source.received_at,
        reward=source.reward,
        outcomes=source.outcomes,
        edited=source.edited,
        decision=None if state == "waiting" else _decision(entry, group),
    )
    return WholeDraft(
        listed=listed,
        messages=tuple(DraftMessage(each.role, each.content) for each in entry.messages),
        solution=entry.solution,
        session=source.session,
        turn=source.turn,
        versions=source.versions,
        reward_spec=source.reward_spec,
        user=reuse.user,
        key=reuse.key,
        only_for=reuse.only_for,
        work=_work(entry.work) if isinstance(entry, Draft) and entry.work is not None else None,
    )


def _work(work: AgentWork) -> DraftedWork:
    return DraftedWork(
        changes=tuple(DraftChange(**change.model_dump()) for change in work.changes),
        commands=tuple(DraftCommand(**command.model_dump()) for command in work.commands),
        unseen=work.unseen,
        image=work.image,
        state=None if work.state is None else work.state.task,
    )


def _decision(entry: Draft | Case, group: str | None) -> DraftDecision:
    by, at = (None, None) if entry.review is None else (entry.review.by, entry.review.at)
    if isinstance(entry, Draft):
        return DraftDecision(by=by, at=at, why=entry.why, group=group)
    checker = value_text(entry.checker.model_dump(exclude_none=True, exclude_defaults=True))
    return DraftDecision(by=by, at=at, checker=checker, group=entry.group)


def _decided_at(listed: ListedDraft) -> datetime:
    return (listed.decision and listed.decision.at) or _EPOCH


@contextmanager
def _in_terms_of_requests() -> Iterator[None]:
    """Raise for a client what the decision was refused with. A file that cannot be read stands against it, too."""
    try:
        yield
    except Refused as error:
        if error.code == "unknown_draft":
            raise NotFound(error.said, param="name", code=error.code) from error
        if error.field is not None:
            raise InvalidRequest(f"{error.field}: {error.said}", param=error.field, code=error.code) from error
        raise Conflict(error.said, param="name", code=error.code) from error
    except ConfigError as error:
        raise Conflict(str(error), code="suite_unreadable") from error
