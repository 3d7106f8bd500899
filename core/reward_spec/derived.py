"""Outcomes that the scorer derives from how a conversation goes on."""

from typing import Final, Literal

from pydantic import field_validator

from core.errors import ConfigError
from core.reward_spec.part import Part
from core.text.patterns import pattern as compiled

DerivedRule = Literal["follow_up", "regenerated", "abandoned", "reverted", "tool_results", "failed_calls", "survival"]


_LONGEST_NAME: Final = 64
"""Characters, of tools that are offered."""


def call_line(name: str, arguments: str) -> str:
    """Return a tool call as patterns see it. Clients may report calls of tools of any name."""
    return f"{name[:_LONGEST_NAME]} {arguments}"


class DerivedSpec(Part):
    """The outcomes that are derived, and their patterns.

    An outcome is derived only if `[outcomes]` has its name, and counts only if nobody reported it for that turn
    explicitly. Patterns are regular expressions of RE2, searched case-insensitively; those of calls match `NAME
    ARGUMENTS`."""

    rules: tuple[DerivedRule, ...] = ()
    """The rules that are applied."""
    displeased: str = (
        r"^\W*(no|nope|wrong|stop|undo|revert)\b|\b(not what i|that'?s (not|wrong)|isn'?t (right|what)"
        r"|does ?n[o']t work|did ?n[o']t work|still (fails?|failing|broken|wrong|not)|you (broke|forgot|missed|ignored)"
        r"|try again|as i said|i (already )?(said|asked|told you))\b"
    )
    """The pattern of what a displeased user writes next (`follow_up`)."""
    takes_back: str = r"\b(undo|revert|roll ?back|discard|restore)\b.{0,40}\b(that|this|it|edits?|changes?|last)\b"
    """The pattern of what a user writes who wants an edit taken back (`reverted`)."""
    repeats: float = 0.85
    """Likeness, 0 to 1, from which a request counts as the one before it, asked again (`follow_up`)."""
    edits: str = r"^\w*(edit|write|replace|patch|insert|create)\w* "
    """Calls that change files."""
    reads: str = r"^\w*(read|view|open|cat|show)\w* "
    """Calls that show files."""
    searches: str = r"^\w*(search|grep|glob|find|list)\w* |\b(grep|rg|ripgrep|find \S+ -i?name)\b"
    """Calls that look for files, or in them; no outcome follows from them, the console counts them."""
    tests: str = r"^\w*tests?\w* |\b(pytest|jest|vitest|go test|cargo test|npm (run )?test|mvn test|unittest|ctest)\b"
    """Calls that run tests (`tests_passed`)."""
    builds: str = r"^\w*(build|compile)\w* |\b(make|cargo build|npm run build|go build|tsc|gradle|mvn package)\b"
    """Calls that build (`build_passed`)."""
    lints: str = r"^\w*lint\w* |\b(ruff|eslint|flake8|pylint|mypy|clippy|golangci-lint)\b"
    """Calls that check style and types (`lint_passed`)."""

    @field_validator("displeased", "takes_back", "edits", "reads", "searches", "tests", "builds", "lints")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            compiled(pattern)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return pattern

    @field_validator("repeats")
    @classmethod
    def _is_likeness(cls, value: float) -> float:
        if not 0 < value <= 1:
            raise ValueError("a likeness lies above 0 and up to 1")
        return value
