"""One answer's tokens, read as they arrive: first as characters, then as what they say."""

import codecs
import secrets
from collections.abc import Iterable, Sequence

from core.events import ToolCall
from core.ports import OutputDelta
from serving.rendering.formats.parser import FormatParser, Words
from serving.rendering.token_places import TokenPlaces
from serving.rendering.vocabulary import Vocabulary


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
