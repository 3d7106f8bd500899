"""The work of an agent in a session: which files it changed, which commands it ran, and from what state it began.

All of it is read from the log: the model's calls, and their results in the requests that follow."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import re2  # type: ignore[import-untyped]

from api.redaction.finder import Finder
from core.events import Completion
from core.settings.privacy import Redactable
from core.text.json_objects import object_of
from environments.harness.prompts import ALL as HARNESS_WORDS
from onward.replays.exports.conversations import Conversations
from onward.replays.exports.past import Logged
from onward.replays.suites.commands import Ran, command_of, doubt_of, exit_code_of, only_looks, runs_one_of
from serving.evals.agent_work import AgentWork, FileChange, RanCommand, State

_OWN: Final = ("turn", "suggestion", "summary")  # purposes of the agent's own turns
_PATHS: Final = ("path", "file_path", "filePath", "target_file")
_OLD: Final = ("old", "old_string", "oldString", "old_str", "search")
_NEW: Final = ("new", "new_string", "newString", "new_str", "replace")
_WHOLE: Final = ("content", "contents", "file_text")
_EVERYWHERE: Final = ("everywhere", "replace_all", "replaceAll")
# How the tools of our harness and of editors' agents say that they did nothing.
_REFUSED: Final = re2.compile(
    r"(?i)^\s*(<tool_use_error>|error|failed|could not|cannot|unable|permission denied)|nothing was changed|"
    r"there is no such file|the arguments are not what it takes|the edits change nothing|is not in the file|"
    r"not found in|no match"
)
_TEST_FILE: Final = re2.compile(
    r"(^|/)(tests?|__tests__)/|(^|/)(test_[^/]*|[^/]*_test\.\w+|[^/]*\.(test|spec)\.\w+|conftest\.py)$"
)
SECRET: Final = "<SECRET>"
_REDACTED: Final[tuple[Redactable, ...]] = ("secrets",)


@dataclass(frozen=True)
class _Called:
    """A tool call; `result` is None where no later request has it."""

    name: str
    arguments: Mapping[str, Any]
    result: str | None
    by_helper: bool
    turn: str = ""


def calls_tools(session: Sequence[Logged]) -> bool:
    return any(each.turn.tool_calls for each in session)


class Agents:
    """Reads agents' sessions. `states`: the state that each known image holds, by its digest."""

    def __init__(self, talk: Conversations, states: Mapping[str, State]) -> None:
        self._talk, self._states = talk, states
        self._secrets = Finder(_REDACTED)

    def work_of(self, session: Sequence[Logged], last: Completion) -> tuple[str, AgentWork] | str:
        """Return what the user asked in a session and what the agent did, or why it becomes no task."""
        turns = sorted(session, key=lambda each: (each.turn.received_at, each.turn.inference_id))
        if _went_back([each.turn for each in turns], last):
            return "went_back"
        images = {each.turn.environment_image for each in turns} - {None}
        image = images.pop() if len(images) == 1 else None
        state = None if image is None else self._states.get(image)
        own = _own([each.turn for each in turns], last)
        calls = list(self._calls(turns, own))
        changes, commands, unseen = self._done(calls, None if state is None else state.workdir)
        if not changes:
            return "no_changes"
        if not any(each.is_test for each in commands):
            return "no_tests"
        asked = self._clean("\n\n".join(text for text in _asked(last) if text.strip()))
        if not asked.strip():
            return "no_words"
        return asked, AgentWork(
            changes=tuple(changes),
            commands=tuple(commands),
            unseen=tuple(unseen),
            image=image,
            state=state,
            turns=tuple(dict.fromkeys(call.turn for call in calls if any(_changes(call)))),
        )

    def _calls(self, turns: Sequence[Logged], own: Collection[str]) -> Iterator[_Called]:
        """Yield the session's calls in order, as their users edited them. `own`: the turns of the agent itself."""
        for each in turns:
            kept = None if each.reward is None else self._talk.kept(each.turn, each.reward)
            edited = {call["id"]: call["function"]["arguments"] for call in (kept or {}).get("tool_calls", ())}
            results = _results([other.turn for other in turns if other.turn.parent_id == each.turn.inference_id])
            for call in each.turn.tool_calls:
                said = object_of(edited.get(call.id, call.arguments))
                if said is not None:
                    by_helper = each.turn.inference_id not in own
                    yield _Called(call.name, said, results.get(call.id), by_helper, each.turn.inference_id)

    def _done(
        self, calls: Sequence[_Called], workdir: str | None
    ) -> tuple[list[FileChange], list[RanCommand], list[str]]:
        changes, runs, unseen = list[FileChange](), list[Ran](), list[str]()
        changed_tests = False
        moves = 0
        for call in calls:
            command = command_of(call.name, call.arguments)
            made = [] if command is not None else list(_changes(call))
            if command is not None:
                is_told, code = call.result is not None, exit_code_of(call.result)
                runs.append(Ran(command, code, moves, is_told, call.by_helper))
                if not only_looks(command):
                    moves += 1
                    unseen.append(f"the command {command}")
            elif made and call.result is None:
                moves += 1
                unseen.append(f"{call.name} of {made[0].path}, whose result is not in the log")
            elif made and not _REFUSED.search((call.result or "")[:2000]):
                moves += 1
                changes += [self._cleaned(change) for change in made]
                changed_tests = changed_tests or any(_TEST_FILE.search(change.path) for change in made)
        found = dict[str, RanCommand]()
        for ran in runs:  # the last run of each command counts
            before = found.get(ran.command)
            clean = self._clean(ran.command)
            changed = changed_tests or runs_one_of(ran.command, [change.path for change in changes])
            doubt = "secret" if clean != ran.command else doubt_of(ran, moves, workdir, changed_tests=changed)
            failed = before is not None and (before.failed_before or before.exit_code not in (None, 0))
            found[ran.command] = RanCommand(command=clean, exit_code=ran.exit_code, failed_before=failed, doubt=doubt)
        tests = {each.command for each in found.values() if each.doubt is None}
        others = [self._clean(said) for said in dict.fromkeys(unseen) if said.removeprefix("the command ") not in tests]
        return changes, list(found.values()), others

    def _cleaned(self, change: FileChange) -> FileChange:
        return change.model_copy(update={name: self._clean(getattr(change, name)) for name in ("path", "old", "new")})

    def _clean(self, text: str) -> str:
        """Return the text without secrets."""
        end, parts = 0, list[str]()
        for span in self._secrets.find(text):
            parts += text[end : span.start], SECRET
            end = span.end
        return "".join([*parts, text[end:]])


def _opening(turn: Completion) -> tuple[Any, ...]:
    """Return a turn's first message, which differs between the agents of a session."""
    first = turn.messages[0] if turn.messages else {}
    return first.get("role"), _text(first)


def _own(turns: Sequence[Completion], last: Completion) -> set[str]:
    """Return the turns of the agent that gave the last answer, without those of its helpers."""
    line = _line(turns, last)
    alike = {turn.inference_id for turn in turns if turn.purpose in _OWN and _opening(turn) == _opening(last)}
    return line | alike


def _line(turns: Sequence[Completion], last: Completion) -> set[str]:
    """Return the last answer's turn and all turns that it continues."""
    known = {turn.inference_id: turn for turn in turns}
    line, at = set[str](), known.get(last.inference_id)
    while at is not None and at.inference_id not in line:
        line.add(at.inference_id)
        at = None if at.parent_id is None else known.get(at.parent_id)
    return line


def _went_back(turns: Sequence[Completion], last: Completion) -> bool:
    """Return whether the agent changed files in a branch that it left: nobody knows whether they stayed changed."""
    line, own, left = _line(turns, last), _own(turns, last), set[str]()
    for turn in turns:
        if turn.inference_id in own - line and turn.parent_id is not None and turn.parent_id in line | left:
            left.add(turn.inference_id)
            said = [(call.name, object_of(call.arguments) or {}) for call in turn.tool_calls]
            if any(list(_changes(_Called(name, given, None, by_helper=False))) for name, given in said):
                return True
    return False


def _asked(last: Completion) -> Iterator[str]:
    """Yield all that the user asked, in order."""
    for message in last.messages:
        if message.get("role") == "user" and _text(message) not in HARNESS_WORDS:
            yield _text(message)


def _results(continuing: Sequence[Completion]) -> dict[str, str]:
    """Return the results of a turn's calls by call id, from the turns that continue it.

    They follow the assistant's last message; earlier ones may belong to other calls, since ids repeat."""
    found: dict[str, str] = {}
    for turn in continuing:
        said = [place for place, message in enumerate(turn.messages) if message.get("role") == "assistant"]
        for message in turn.messages[said[-1] if said else 0 :]:
            if message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str):
                found.setdefault(message["tool_call_id"], _text(message))
    return found


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def _changes(call: _Called) -> Iterator[FileChange]:
    """Yield the changes of files that a call asks for, in the words of any agent's tools."""
    said = call.arguments
    path = _first(said, _PATHS)
    if not path:
        return
    edits = said.get("edits")
    for edit in edits if isinstance(edits, list) else [said]:
        if not isinstance(edit, dict):
            continue
        old, new = _first(edit, _OLD), _first(edit, _NEW)
        if old and new is not None:
            is_everywhere = any(edit.get(name) is True for name in _EVERYWHERE)
            kind: Literal["edit", "everywhere"] = "everywhere" if is_everywhere else "edit"
            yield FileChange(kind=kind, path=path, old=old, new=new, by_helper=call.by_helper)
    whole = _first(said, _WHOLE)
    if whole is not None and not isinstance(edits, list):
        yield FileChange(kind="write", path=path, new=whole, by_helper=call.by_helper)


def _first(said: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((said[name] for name in names if isinstance(said.get(name), str)), None)
