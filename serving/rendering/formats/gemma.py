"""The form of calls of Gemma 4.

    <|tool_call>call:read_file{path:<|"|>a.py<|"|>,lines:[1,2]}<tool_call|>

It is JSON with bare keys, and with a mark of its own for quotes."""

from typing import Any

from serving.rendering.formats.calls import NoCall, ParsedCall, Schemas, checked_call, parsed_json
from serving.rendering.formats.parser import BlockFormat, CallBlock, Thinking

_QUOTE = '<|"|>'
_DEEPEST = 64
GEMMA_THINKING = Thinking("<|channel>thought\n", "<channel|>")


def _read(text: str, tools: Schemas) -> list[ParsedCall]:
    head, brace, rest = text.strip().partition("{")
    if not head.startswith("call:") or not brace:
        raise NoCall("a call begins with its name")
    values = _Values(brace + rest)
    arguments = values.value(0)
    values.end()
    return [checked_call(head.removeprefix("call:"), arguments)]


class _Values:
    """The values in a text, read from its beginning."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0

    def end(self) -> None:
        if self._text[self._place :].strip():
            raise NoCall("there is text after a call's arguments")

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise NoCall("arguments are nested too deep")
        if self._takes(_QUOTE):
            return self._until(_QUOTE)
        if self._takes("{"):
            return self._object(depth)
        if self._takes("["):
            return self._list(depth)
        return parsed_json(self._bare())

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not self._takes("}"):
            if members:
                self._need(",")
            key = self._until(_QUOTE) if self._takes(_QUOTE) else None
            if key is None:
                key = self._until(":").strip()
            else:
                self._need(":")
            members[key] = self.value(depth + 1)
        return members

    def _list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self._takes("]"):
            if items:
                self._need(",")
            items.append(self.value(depth + 1))
        return items

    def _bare(self) -> str:
        """Return a number, true, false or null."""
        begin = self._place
        while self._place < len(self._text) and self._text[self._place] not in ",}]":
            self._place += 1
        return self._text[begin : self._place]

    def _until(self, mark: str) -> str:
        end = self._text.find(mark, self._place)
        if end < 0:
            raise NoCall(f"{mark} is missing")
        text = self._text[self._place : end]
        self._place = end + len(mark)
        return text

    def _takes(self, mark: str) -> bool:
        found = self._text.startswith(mark, self._place)
        self._place += len(mark) * found
        return found

    def _need(self, mark: str) -> None:
        if not self._takes(mark):
            raise NoCall(f"{mark} is missing")


GEMMA = BlockFormat((CallBlock("<|tool_call>", "<tool_call|>", _read),))
