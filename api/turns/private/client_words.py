"""The words of an answer as its client gets them: with the values that the model only knew as placeholders."""

import json
from collections.abc import Mapping, Sequence

import msgspec

from api.redaction.placeholders import Restorer, restored
from core.events import ToolCall


class ClientWords:
    """The values come back wherever the model wrote a placeholder: in thinking, text, and the arguments of calls."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._written = {placeholder: json.dumps(value)[1:-1] for placeholder, value in values.items()}
        self._reasoning, self._content = Restorer(values), Restorer(values)

    def text(self, text: str) -> str:
        return restored(text, self._values)

    def calls(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the calls; their arguments are JSON, in which values are written as its strings are."""
        return [msgspec.structs.replace(call, arguments=restored(call.arguments, self._written)) for call in calls]

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
