r"""A text as finders see it: without JSON's escapes, look-alikes of ASCII letters, and invisible characters.

So a key is found after `\n` in a string of code, and if it is written in letters of another alphabet. Findings are
given as places in the original text."""

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from api.redaction.findings import SensitiveSpan

_INVISIBLE: Final = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\u2064\ufe0f\ufeff"
_ESCAPES: Final = (("\\n", "  "), ("\\r", "  "), ("\\t", "  "), ('\\"', ' "'), ("\\/", " /"))
_ALIKE: Final = dict(
    zip(
        map(ord, "АВСЕНІЈКМОРЅТХУаесіјорѕхуԁһԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧοαѵᴏ‐‑‒–−․／＿"),
        "ABCEHIJKMOPSTXYaecijopsxydhqwABEZHIKMNOPTYXoavo-----./_",
        strict=True,
    )
)


_HALVES: Final = dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # of surrogate pairs: RE2 takes none
_SPACES: Final = str.maketrans({"\u2028": "\n", "\u00a0": " "})


class _LookAlikes(dict[int, int]):
    """The character of ASCII that each one looks like, else itself."""

    def __missing__(self, code: int) -> int:
        plain = _ALIKE.get(code) or unicodedata.normalize("NFKC", chr(code))
        found = ord(plain) if len(plain) == 1 and plain.isascii() else code
        if code >= 128 and found == code and (digit := unicodedata.digit(chr(code), None)) is not None:
            found = ord(str(digit))
        if len(self) < _MOST_KEPT:
            self[code] = found
        return found


_MOST_KEPT: Final = 10_000
_look_alikes: Final = _LookAlikes()


class SeenText:
    """`plain` is for forms of ASCII, `written` for names, which other alphabets have as well."""

    def __init__(self, text: str) -> None:
        self._places: Sequence[int] | None = None
        if not text.isascii():
            text = text.translate(_HALVES)
            if any(character in text for character in _INVISIBLE):
                self._places = [place for place, character in enumerate(text) if character not in _INVISIBLE]
                text = "".join([text[place] for place in self._places])
            text = text.translate(_SPACES)
        if "\\" in text:
            for escape, spaces in _ESCAPES:
                text = text.replace(escape, spaces)
        self.written = text
        self.plain = text if text.isascii() else text.translate(_look_alikes)

    def in_text(self, found: SensitiveSpan) -> SensitiveSpan:
        """Return the finding in places of the text."""
        if self._places is None:
            return found
        return SensitiveSpan(self._places[found.start], self._places[found.end - 1] + 1, found.kind)


def without(findings: Sequence[SensitiveSpan], spans: Sequence[tuple[int, int]]) -> list[SensitiveSpan]:
    """Return what of the findings, which do not overlap, is outside of the spans, which are in order."""
    if not spans:
        return list(findings)
    left: list[SensitiveSpan] = []
    first = 0
    for each in findings:
        while first < len(spans) and spans[first][1] <= each.start:
            first += 1
        last = first
        while last < len(spans) and spans[last][0] < each.end:
            last += 1
        within = spans[first:last]
        edges = [(each.start, each.start), *within, (each.end, each.end)]
        for (_, start), (end, _) in pairwise(edges):
            if start < end and (not within or end - start >= _LEAST_LEFT):
                left.append(SensitiveSpan(start, end, each.kind))
    return left


_LEAST_LEFT: Final = 6  # characters beside a placeholder: quotes and brackets are nothing to redact
