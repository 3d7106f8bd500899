"""One answer's tokens, read as they arrive: first as characters, then as what they say."""

import codecs
import secrets
from collections.abc import Iterable, Sequence

from core.events import TokenRange, ToolCall
from core.ports import OutputDelta
from serving.rendering.formats.parser import FormatParser, Words
from serving.rendering.vocabulary import Vocabulary


class TokenPlaces:
    """Finds the tokens of an answer's characters. Nothing is decoded before somebody asks.

    Where the bytes of a character are spread over several tokens, it belongs to all of them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ends: list[int] = []  # characters that are whole after each token
        self._is_within: list[bool] = []  # a character, after each token
        self._characters = 0
        self._taken = 0  # tokens, by ranges
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, pieces: Sequence[bytes]) -> None:
        """Add tokens, each by its bytes."""
        self._pieces += pieces

    def take(self, start: int, end: int) -> TokenRange | None:
        """Return the tokens of characters [start, end) that no earlier range took; None where all were taken.

        Ranges must come in order."""
        self._decode()
        first = self._taken
        while first < len(self._ends) and self._ends[first] <= start:
            first += 1
        if first == len(self._ends) or (first and self._ends[first - 1] >= end):
            return None
        while first > self._taken and self._is_within[first - 1] and self._ends[first - 1] == start:
            first -= 1
        last = first
        while self._ends[last] < end and last < len(self._ends) - 1:  # no token has all of a cut character at the end
            last += 1
        self._taken = last + 1
        return TokenRange(start=first, end=last + 1)

    def _decode(self) -> None:
        for piece in self._pieces[len(self._ends) :]:
            self._characters += len(self._decoder.decode(piece))
            self._ends.append(self._characters)
            self._is_within.append(bool(self._decoder.getstate()[0]))


class PlainParser:
    """The parser of text that is nothing but text."""

    def read(self, text: str, *, last: bool) -> Words:
        return Words(content=text)


class StreamParser:
    """One answer. Bytes that are no character yet are held back; at the end they become U+FFFD."""

    def __init__(self, vocabulary: Vocabulary, silent_ids: Iterable[int], parser: FormatParser) -> None:
        """Begin an answer. `silent_ids` are tokens that say nothing, such as the one that ends it."""
        self._vocabulary = vocabulary
        self._silent_ids = frozenset(silent_ids)
        self._parser = parser
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._calls = 0
        self._places = TokenPlaces()
        self._drops_space = vocabulary.drops_first_space

    def feed(self, token_ids: Sequence[int]) -> OutputDelta:
        pieces = [b"" if i in self._silent_ids else self._vocabulary.token_bytes(i) for i in token_ids]
        data = b"".join(pieces)
        if self._drops_space and data:
            first = next(place for place, piece in enumerate(pieces) if piece)
            pieces[first] = pieces[first].removeprefix(b" ")
            data, self._drops_space = b"".join(pieces), False
        self._places.add(pieces)
        return self._delta(self._parser.read(self._decoder.decode(data), last=False))

    def finish(self) -> OutputDelta:
        return self._delta(self._parser.read(self._decoder.decode(b"", final=True), last=True))

    def _delta(self, words: Words) -> OutputDelta:
        calls = []
        for call, characters in zip(words.calls, words.call_ranges, strict=True):
            made = ToolCall(
                id=f"call_{secrets.token_hex(12)}",
                name=call.name,
                arguments=call.arguments,
                index=self._calls,
                token_range=self._places.take(*characters),
            )
            self._calls += 1
            calls.append(made)
        return OutputDelta(
            content=words.content,
            reasoning=words.reasoning,
            tool_calls=tuple(calls),
            broken_calls=words.broken_calls,
            thinking_ended=words.thinking_ended,
        )
