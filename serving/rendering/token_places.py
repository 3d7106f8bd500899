"""The tokens that an answer's characters stand in."""

import codecs
from collections.abc import Sequence

from core.events import TokenRange


class TokenPlaces:
    """The places of one answer's characters among its tokens. Nothing is decoded before somebody asks.

    Tokens whose bytes are part of one character hold it together."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ends: list[int] = []  # characters that are whole after each token
        self._is_within: list[bool] = []  # a character, after each token
        self._characters = 0
        self._taken = 0  # tokens, by ranges
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, pieces: Sequence[bytes]) -> None:
        """Add tokens by the bytes that each says."""
        self._pieces += pieces

    def take(self, start: int, end: int) -> TokenRange | None:
        """Return the tokens of characters [start, end) which no range before has; None where one had them all.

        Ranges are taken in order."""
        self._decode()
        first = self._taken
        while first < len(self._ends) and self._ends[first] <= start:
            first += 1
        if first == len(self._ends) or (first and self._ends[first - 1] >= end):
            return None
        while first > self._taken and self._is_within[first - 1] and self._ends[first - 1] == start:
            first -= 1
        last = first
        while self._ends[last] < end and last < len(self._ends) - 1:  # a cut character at the end is of no token
            last += 1
        self._taken = last + 1
        return TokenRange(start=first, end=last + 1)

    def _decode(self) -> None:
        for piece in self._pieces[len(self._ends) :]:
            self._characters += len(self._decoder.decode(piece))
            self._ends.append(self._characters)
            self._is_within.append(bool(self._decoder.getstate()[0]))
