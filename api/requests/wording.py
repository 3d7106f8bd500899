"""The words of an answer's tokens: thinking, text up to a stop string, and tool calls."""

from collections.abc import Sequence

from api.requests.stops import StopCutter
from core.events import FinishReason, ToolCall
from core.ports import OutputDelta, OutputParser


class Wording:
    """The words of one answer: `read` tokens as they arrive, or many at once; `take` what is new for the client."""

    def __init__(self, parser: OutputParser, stops: Sequence[str], *, parallel_tool_calls: bool) -> None:
        self.text = ""
        self.reasoning = ""
        self.has_thought = False
        self.tool_calls: list[ToolCall] = []
        self.broken_calls = 0
        self.ended: FinishReason | None = None  # by the words themselves, whatever the engine would add
        self.must_follow = bool(stops) or not parallel_tool_calls
        """The words can end the turn, so every chunk is read before the next is awaited."""
        self._parser = parser
        self._cutter = StopCutter(stops)
        self._parallel = parallel_tool_calls
        self._taken_text = 0
        self._taken_reasoning = 0
        self._taken_calls = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._cutter.matched

    def read(self, token_ids: Sequence[int]) -> None:
        self._add(self._parser.feed(token_ids))

    def close(self) -> None:
        """Add the text that was held back, as no more tokens will come."""
        self._add(self._parser.finish())
        self.text += self._cutter.finish()

    def take(self) -> tuple[str, str, list[ToolCall]]:
        """Return thinking, text and calls that were not taken before."""
        reasoning, content = self.reasoning[self._taken_reasoning :], self.text[self._taken_text :]
        calls = self.tool_calls[self._taken_calls :]
        self._taken_reasoning, self._taken_text = len(self.reasoning), len(self.text)
        self._taken_calls = len(self.tool_calls)
        return reasoning, content, calls

    def _add(self, delta: OutputDelta) -> None:
        if self.ended is not None:
            return
        self.broken_calls += delta.broken_calls
        self.reasoning += delta.reasoning
        self.has_thought = self.has_thought or bool(delta.reasoning) or delta.thinking_ended
        self.text += self._cutter.feed(delta.content)
        if self._cutter.stopped:
            self.ended = "stop"
        elif self._parallel:
            self.tool_calls += delta.tool_calls
        elif delta.tool_calls:
            self.tool_calls.append(delta.tool_calls[0])
            self.ended = "tool_calls"
