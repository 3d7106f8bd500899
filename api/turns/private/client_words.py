"""The words of an answer for its client: with the values in place of the placeholders that the model saw."""

import json
from collections.abc import Mapping, Sequence

import msgspec

from api.redaction.placeholders import Restorer, restored
from core.events import ToolCall


class ClientWords:
    """The values come back wherever the model wrote a placeholder: in thinking, text, and the arguments of calls."""

    def __init__(self, values: Mapping[str, str], *, is_json: bool) -> None:
        """Make them. `is_json`: the text is JSON, in which values are written as its strings are."""
        self._values = values
        written = {placeholder: json.dumps(value, ensure_ascii=False)[1:-1] for placeholder, value in values.items()}
        self._of_calls, self._of_content = written, written if is_json else values
        self._reasoning, self._content = Restorer(values), Restorer(self._of_content)

    def thinking(self, text: str) -> str:
        return restored(text, self._values)

    def content(self, text: str) -> str:
        return restored(text, self._of_content)

    def calls(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the calls, whose arguments are JSON."""
        return [msgspec.structs.replace(call, arguments=restored(call.arguments, self._of_calls)) for call in calls]

    def part(
        self, reasoning: str, content: str, calls: Sequence[ToolCall], *, is_last: bool
    ) -> tuple[str, str, list[ToolCall]]:
        """Return what can be said of the next part of an answer by now, and the rest with the last."""
        reasoning = self._reasoning.feed(reasoning)
        if content or calls or is_last:
            reasoning += self._reasoning.finish()
        content = self._content.feed(content)
        if calls or is_last:
            content += self._content.finish()
        return reasoning, content, self.calls(calls)
