"""Words of names and of prose: `parseHTTPHeader` and `parse_http_header` are the same three words."""

import re
from typing import Final

_RUN: Final = re.compile(r"[A-Za-z]+|[0-9]+")
_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_SAY_NOTHING: Final = (
    "a an and are as at be been by can do does for from has have how if in into is it its may not of on or so than "
    "that the their them then there these this to used using was we what when where which while who will with you your "
    "self cls def return none"
)
_STOP: Final = frozenset(_SAY_NOTHING.split())
_LEAST_STEM: Final = 3


def words_of(text: str) -> list[str]:
    """Return the words of a text or a name, in lower case, without endings and without those that say nothing."""
    parts = (part.lower() for run in _RUN.findall(text) for part in _PART.findall(run))
    return [stem(part) for part in parts if part not in _STOP]


def stem(word: str) -> str:
    """Return a word without its ending of plural, participle or agent, where enough of it is left.

    Far less than Porter's algorithm: names in code are short, and what is cut too far meets what it should not."""
    for ending in ("ies", "ing", "ers", "ed", "er", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM and not word.endswith("ss"):
            left = word[: -len(ending)]
            if ending == "ies":
                return left + "y"
            return left[:-1] if ending in ("ing", "ed", "er", "ers") and _is_doubled(left) else left
    return word


def _is_doubled(text: str) -> bool:
    return len(text) > _LEAST_STEM and text[-1] == text[-2] and text[-1] not in "ls"
