"""Stop strings: the text is cut where one starts, and no part of one is ever sent."""

from collections.abc import Sequence


class StopCutter:
    """A filter of decoded text; what it lets out can no longer become part of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
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
        text = self._held + text
        cuts = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if cuts:
            (first, self.matched), self._held = min(cuts), ""
            return text[:first]
        keep = max(self._overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the text that was held back and became no stop string."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Return how many characters at the text's end are a start of the stop string."""
        for length in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0
