"""Runs of tests, builds and linters, and what their results say."""

from collections.abc import Sequence

from core.reward_spec import DerivedSpec
from core.text.json_objects import object_of
from core.text.patterns import Pattern, pattern

_TAIL = 4000  # characters of a result, from its end, where tools sum up
_EXIT_CODES = ("exit_code", "exitCode", "returncode", "exit_status")
_VERDICTS = ("passed", "success", "ok")
_EXIT = pattern(r"\bexit(?:ed)?(?: with)?(?: code| status)?[:= ]+(-?\d+)\b")
_COUNTED = pattern(r"\b(\d+) (failed|failures?|errors?|failing)\b")
_BAD = Pattern(
    r"(?m)^[^\w\n]*(fail(ed|ure)?|error)\b|\b(FAILED|FAIL|BUILD FAILURE|Traceback|error\[E\d+\]|error TS\d+)"
)
_HEAD = 200  # characters of a result, from its beginning, where tools say that they could not
_FAILED_CALL = pattern(
    r"^[\s\[<*]*((error|failed|failure|exception)[\]>]*\s*(:|\n|$)|traceback \(|unknown tool\b)"
    r"|^([\w./~@+-]+( [\w./~@+-]+)?: ){0,3}(no such file|command not found|permission denied)"
    r"|^[\w./~@+-]+: (cannot|could not) "
)
_ENDED = pattern(r"^\W*exit(?:ed)?(?: with)?(?: code| status)?[:= ]+(-?\d+)\b")
_FAILED = ("error", "failed", "failure")
_GOOD = pattern(
    r"(?m)^[^\w\n]*(pass(ed)?|ok|success)[^\w\n]*$|\b\d+ (passed|passing)\b"
    r"|\b(BUILD SUCCESS|All checks passed|Success: no issues|PASS)\b"
)


def run_of(line: str, spec: DerivedSpec) -> str | None:
    """Return the outcome that the result of this call decides, if it runs anything. `line`: from `call_line`."""
    kinds = (("tests_passed", spec.tests), ("build_passed", spec.builds), ("lint_passed", spec.lints))
    return next((name for name, kind in kinds if pattern(kind).is_in(line)), None)


def verdict_of(result: str) -> bool | None:
    """Return whether the run succeeded; None when the result does not say."""
    told = _told(result, (*_EXIT_CODES, "code"))
    if told is not None:
        return told
    tail = result[-_TAIL:]
    if codes := _EXIT.groups(tail):
        return _is_zero(codes[-1][0])
    if counts := _COUNTED.groups(tail):
        return all(_is_zero(count) for count, *_ in counts)
    if _BAD.is_in(tail):
        return False
    return True if _GOOD.is_in(tail) else None


def is_failure(result: str) -> bool:
    """Return whether a result says that its call failed, of a call that runs nothing: a file may well say "error".

    It says so as a verdict, as the exit code that is its last line, or by its first words. What is called "code" alone
    is often data that the call has read."""
    told = _told(result, _EXIT_CODES)
    if told is not None:
        return not told
    if (object_of(result) or {}).get("status") in _FAILED:
        return True
    if codes := _ENDED.groups(result.rstrip().rpartition("\n")[2]):
        return not _is_zero(codes[-1][0])
    return _FAILED_CALL.is_in(result[:_HEAD])


def _is_zero(digits: str) -> bool:
    return not digits.strip("-0")


def _told(result: str, exit_codes: Sequence[str]) -> bool | None:
    """Return the verdict of a result that is an object with an exit code, under one of these names, or a verdict."""
    told = object_of(result) or {}
    for key in exit_codes:
        if isinstance(told.get(key), int) and not isinstance(told[key], bool):
            return bool(told[key] == 0)
    return next((told[key] for key in _VERDICTS if isinstance(told.get(key), bool)), None)
