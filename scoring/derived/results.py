"""What the environment said of an edit: tests, builds and linters that ran after it."""

from collections.abc import Iterator, Sequence

from core.json_objects import object_of
from core.patterns import Pattern, pattern
from core.reward_spec import DerivedSpec
from scoring.derived.conclusion import Conclusion
from scoring.derived.conversation import Call, Conversation
from scoring.state import Turn

_TAIL = 4000  # characters of a result, from its end, where tools sum up
_EXIT_CODES = ("exit_code", "exitCode", "returncode", "exit_status", "code")
_VERDICTS = ("passed", "success", "ok")
_EXIT = pattern(r"\bexit(?:ed)?(?: with)?(?: code| status)?[:= ]+(-?\d+)\b")
_COUNTED = pattern(r"\b(\d+) (failed|failures?|errors?|failing)\b")
_BAD = Pattern(
    r"(?m)^[^\w\n]*(fail(ed|ure)?|error)\b|\b(FAILED|FAIL|BUILD FAILURE|Traceback|error\[E\d+\]|error TS\d+)"
)
_GOOD = pattern(
    r"(?m)^[^\w\n]*(pass(ed)?|ok|success)[^\w\n]*$|\b\d+ (passed|passing)\b"
    r"|\b(BUILD SUCCESS|All checks passed|Success: no issues|PASS)\b"
)


def passed(conversation: Conversation, spec: DerivedSpec) -> Iterator[Conclusion]:
    """Said of the turn whose edit came last before the run; of a run without an edit before it, nobody."""
    calls = conversation.calls
    start = next((place for place, call in enumerate(calls) if conversation.answers_newly(call)), len(calls))
    edited = _last_edit(calls[:start], spec) if start < len(calls) else None
    for place, call in enumerate(calls[start:], start):
        name = _run(call, spec)
        if name is None:
            if pattern(spec.edits).is_in(call.line):
                edited = call.turn
        elif edited is not None and conversation.answers_newly(call):
            verdict = verdict_of(call)
            if verdict is not None:
                yield Conclusion(name, edited.inference_id, verdict, f"{call.name} after the edit", place)


def _run(call: Call, spec: DerivedSpec) -> str | None:
    """The outcome that its result decides."""
    kinds = (("tests_passed", spec.tests), ("build_passed", spec.builds), ("lint_passed", spec.lints))
    return next((name for name, kind in kinds if pattern(kind).is_in(call.line)), None)


def _last_edit(calls: Sequence[Call], spec: DerivedSpec) -> Turn | None:
    edits = (call for call in reversed(calls) if pattern(spec.edits).is_in(call.line) and _run(call, spec) is None)
    return next((call.turn for call in edits), None)


def verdict_of(call: Call) -> bool | None:
    """None where the result does not say."""
    assert call.result is not None
    told = _told(call.result)
    if told is not None:
        return told
    tail = call.result[-_TAIL:]
    if codes := _EXIT.groups(tail):
        return _is_zero(codes[-1][0])
    if counts := _COUNTED.groups(tail):
        return all(_is_zero(count) for count, *_ in counts)
    if _BAD.is_in(tail):
        return False
    return True if _GOOD.is_in(tail) else None


def _is_zero(digits: str) -> bool:
    return not digits.strip("-0")


def _told(result: str) -> bool | None:
    """By a result that is an object with an exit code or a verdict."""
    told = object_of(result) or {}
    for key in _EXIT_CODES:
        if isinstance(told.get(key), int) and not isinstance(told[key], bool):
            return bool(told[key] == 0)
    return next((told[key] for key in _VERDICTS if isinstance(told.get(key), bool)), None)
