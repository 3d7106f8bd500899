"""The redaction of one request: its texts in their order, with one placeholder for each value wherever it stands.

What a text becomes depends on it and on those before it alone, so that the next request of a conversation, which tells
the same history, has the same prompt. A value that was found once is replaced in all later texts, also where nothing
shows that it is one; answers that got values back lose them again when the client tells them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from api.redaction.finder import Finder
from api.redaction.findings import Kind, SensitiveSpan, apart
from api.redaction.placeholders import Scope, restored, spans
from api.redaction.seen import without

_MOST_KNOWN: Final = 256  # values that later texts are searched for: each costs a search
_SHORTEST_KNOWN: Final = 6  # characters; shorter ones are only replaced where they are whole words
_MOST_LOOKS: Final = 4
_NEAR: Final = 256  # characters on both sides of a boundary, over which a secret may be split


class Redaction:
    """`values` are those that were replaced, by their placeholders; one that stands for two values has none."""

    def __init__(self, finder: Finder, scope: Scope, known: Mapping[str, str] | None = None) -> None:
        """Begin one. `known`: values of earlier requests, by their placeholders."""
        self.finder = finder
        self.values: dict[str, str] = {}
        self._scope = scope
        self._ambiguous: set[str] = set()
        self._known: dict[str, tuple[Kind, str]] = {}
        for placeholder, value in (known or {}).items():
            kind: Kind = placeholder[1:].partition("_")[0]  # type: ignore[assignment]  # as placeholders begin
            self._known[value] = kind, placeholder

    def all(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of a request, also without what is split over two that follow each other."""
        split: dict[int, list[SensitiveSpan]] = {}
        for place, (text, following) in enumerate(pairwise(texts)):
            for before, after in self._split(text, following):
                split.setdefault(place, []).append(before)
                split.setdefault(place + 1, []).append(after)
        return [self.text(text, split.get(place, ())) for place, text in enumerate(texts)]

    def text(self, text: str, also: Iterable[SensitiveSpan] = ()) -> str:
        """Return the text redacted.

        What got placeholders is looked at again, since they may part what stood together."""
        for _ in range(_MOST_LOOKS):
            redacted = self._once(text, also)
            if redacted == text:
                break
            text, also = redacted, ()
        return text

    def _once(self, text: str, also: Iterable[SensitiveSpan]) -> str:
        found = self.finder.find(text)
        known = list(self._known_in(text)) if self._known else []
        if not (found or known or also):
            return text
        whole = without(apart([*found, *known, *also]), spans(text))
        parts: list[str] = []
        end = 0
        for each in whole:
            parts += text[end : each.start], self._placeholder(each.kind, text[each.start : each.end])
            end = each.end
        return "".join([*parts, text[end:]])

    def restored(self, text: str) -> str:
        return restored(text, self.values)

    def _placeholder(self, kind: Kind, value: str) -> str:
        known = self._known.get(value)
        placeholder = self._scope.placeholder(kind, value) if known is None else known[1]
        if known is None and len(self._known) < _MOST_KNOWN:
            self._known[value] = kind, placeholder
        if self.values.setdefault(placeholder, value) != value:
            self._ambiguous.add(placeholder)
        if placeholder in self._ambiguous:
            del self.values[placeholder]
            return self._scope.placeholder(kind, value + "\0")
        return placeholder

    def _known_in(self, text: str) -> Iterable[SensitiveSpan]:
        for value, (kind, _) in self._known.items():
            is_whole = kind == "NAME" or len(value) < _SHORTEST_KNOWN
            start = text.find(value)
            while start >= 0:
                end = start + len(value)
                if not is_whole or not _touches_words(text, start, end):
                    yield SensitiveSpan(start, end, kind)
                start = text.find(value, end)

    def _split(self, text: str, following: str) -> Iterable[tuple[SensitiveSpan, SensitiveSpan]]:
        before, after = text[-_NEAR:], following[:_NEAR]
        if not before or not after or before[-1].isspace() or after[0].isspace():
            return
        edge, offset = len(before), len(text) - len(before)
        for each in self.finder.find_forms(before + after):
            if each.start < edge < each.end:
                first = SensitiveSpan(each.start + offset, len(text), each.kind)
                yield first, SensitiveSpan(0, min(each.end - edge, len(following)), each.kind)


def _touches_words(text: str, start: int, end: int) -> bool:
    return text[max(start - 1, 0) : start].isalnum() or text[end : end + 1].isalnum()
