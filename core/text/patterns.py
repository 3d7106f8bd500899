"""Regular expressions for text of clients, matched by RE2: in time linear in the text, whatever it says.

Python's own engine backtracks, so that a crafted text can occupy it for years. What RE2 does not support, back
references and look-around, is refused when a pattern is read. Character classes such as word, digit, space and word
boundary are of ASCII."""

from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from core.errors import ConfigError

_MOST_STATES: Final = 500  # of a client's pattern: each character of a text may cost a step in every one


class Pattern:
    """Thread-safe. A half of a surrogate pair, which no text of the log has, is seen as U+FFFD."""

    def __init__(self, source: str, *, ignore_case: bool = False, most_states: int | None = None) -> None:
        """Compile a pattern. Raises ConfigError, saying what is wrong with it."""
        options = re2.Options()
        options.case_sensitive = not ignore_case
        options.log_errors = False
        options.never_capture = most_states is not None
        try:
            self._compiled = re2.compile(source, options)
        except (re2.error, UnicodeEncodeError) as error:
            why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
            raise ConfigError(f"no regular expression: {why} (as RE2 has them)") from None
        if most_states is not None and self._compiled.programsize > most_states:
            raise ConfigError(f"a regular expression of more than {most_states} states")

    def search(self, text: str) -> str | None:
        """Return the first part that matches."""
        return _found(self._compiled.search(_clean(text)))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where each part that matches stands, in characters [start, end)."""
        return [found.span() for found in self._compiled.finditer(_clean(text))]

    def is_in(self, text: str) -> bool:
        return self._compiled.search(_clean(text)) is not None

    def is_all_of(self, text: str) -> bool:
        return self._compiled.fullmatch(_clean(text)) is not None

    def groups(self, text: str) -> list[tuple[str, ...]]:
        """Return the groups of every match, in order; "" for a group that takes no part in it."""
        return [found.groups(default="") for found in self._compiled.finditer(_clean(text))]


@lru_cache(maxsize=1024)
def pattern(source: str) -> Pattern:
    """Compile a pattern of Onward's or of an operator's, case-insensitive. Raises ConfigError."""
    return Pattern(source, ignore_case=True)


@lru_cache(maxsize=1024)
def clients_pattern(source: str) -> Pattern:
    """Compile a client's pattern, which is limited in size. Raises ConfigError."""
    return Pattern(source, most_states=_MOST_STATES)


def _found(match: Any) -> str | None:
    return None if match is None else str(match[0])


def _clean(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
