"""Stop strings: the text is cut where one starts, and no part of one is ever sent."""

from collections.abc import Sequence


class StopCutter:
    """A filter of decoded text; what it lets out can no longer become part of a stop string.

    It runs on the event loop for each token, and clients choose both the stop strings and, by `logit_bias`, the text:
    it takes a time in proportion to the text, however much of it is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_Stop(stop) for stop in stops]
        self._held = 0  # characters that were not let out: the beginning of the stop string of which most is there
        self._longest: _Stop | None = None
        self.matched: str | None = None

    @property
    def stopped(self) -> bool:
        return self.matched is not None

    def feed(self, text: str) -> str:
        """Add text and return what can be sent, which is nothing after `stopped`."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        cuts = [(end - len(stop.text), stop.text) for stop in self._stops if (end := stop.read(text)) is not None]
        if cuts:
            first, self.matched = min(cuts)
            return self._let_out(text, self._held + first)
        longest = max(self._stops, key=lambda stop: stop.begun)
        out = self._let_out(text, self._held + len(text) - longest.begun)
        self._held, self._longest = longest.begun, longest
        return out

    def finish(self) -> str:
        """Return the text that was held back and became no stop string."""
        return "" if self.stopped else self._let_out("", self._held)

    def _let_out(self, text: str, count: int) -> str:
        """Return the first characters of what was held back and the text behind it."""
        held = "" if self._longest is None else self._longest.text[: min(count, self._held)]
        self._held, rest = self._held - len(held), count - len(held)
        return held + text[:rest]


class _Stop:
    """One stop string, and how much of its beginning stands at the end of the text (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.begun = 0
        self._shorter = [0]
        """By characters less one: how many of a beginning's last are a beginning, too; made as far as it is needed."""

    def read(self, text: str) -> int | None:
        """Go on by a text; return where in it the stop string ends, at the first place, or None."""
        for place, character in enumerate(text, 1):
            self.begun = self._after(self.begun, character)
            if self.begun == len(self.text):
                return place
            self._extend(self.begun)
        return None

    def _after(self, begun: int, character: str) -> int:
        while begun and self.text[begun] != character:
            begun = self._shorter[begun - 1]
        return begun + (self.text[begun] == character)

    def _extend(self, size: int) -> None:
        while len(self._shorter) < size:
            self._shorter.append(self._after(self._shorter[-1], self.text[len(self._shorter)]))
