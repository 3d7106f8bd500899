"""Incremental parsing of answers into content and tool calls (Hermes' format, as Qwen uses it).

    <tool_call>
    {"name": "read_file", "arguments": {"path": "a.py"}}
    </tool_call>

Text that never becomes a whole, valid call is content, with its marks. White space after a call is not content."""

import codecs
import json
import secrets
from collections.abc import Sequence

from core.events import ToolCall
from core.ports import OutputDelta
from serving.rendering.vocabulary import Vocabulary

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class StreamParser:
    """One answer. Bytes that are no character yet, and text that may become a call, are held back."""

    def __init__(self, vocabulary: Vocabulary, stop_ids: frozenset[int], *, tools: bool) -> None:
        self._vocabulary = vocabulary
        self._stop_ids = stop_ids
        self._tools = tools
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._calls = 0
        self._broken = 0
        self._after_call = False  # nothing but white space since the last one

    def feed(self, token_ids: Sequence[int]) -> OutputDelta:
        data = b"".join(self._vocabulary.token_bytes(i) for i in token_ids if i not in self._stop_ids)
        self._held += self._decoder.decode(data)
        return self._advance(last=False)

    def finish(self) -> OutputDelta:
        self._held += self._decoder.decode(b"", final=True)
        return self._advance(last=True)

    def _advance(self, *, last: bool) -> OutputDelta:
        if not self._tools:
            content, self._held = self._held, ""
            return OutputDelta(content=content)
        content = ""
        calls: list[ToolCall] = []
        broken_before = self._broken
        while True:
            text, call = self._next(last=last)
            content += text
            if call is None:
                return OutputDelta(content=content, tool_calls=tuple(calls), broken_calls=self._broken - broken_before)
            calls.append(call)

    def _next(self, *, last: bool) -> tuple[str, ToolCall | None]:
        """Content up to and including the next call; (content, None) when there is no whole one yet."""
        content = ""
        while True:
            if self._after_call:
                self._held = self._held.lstrip()
            start = self._held.find(_OPEN)
            if start < 0:
                return content + self._release(0 if last else _overlap(self._held, _OPEN)), None
            content += self._release(len(self._held) - start)
            end = self._held.find(_CLOSE)
            if end < 0:
                self._broken += last
                return content + (self._release(0) if last else ""), None
            call = self._parse(self._held[len(_OPEN) : end])
            taken = self._release(len(self._held) - end - len(_CLOSE))
            if call is not None:
                self._after_call = True
                return content, call
            self._broken += 1
            content += taken

    def _release(self, keep: int) -> str:
        """All held text but the last `keep` characters."""
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        self._after_call = self._after_call and not text
        return text

    def _parse(self, text: str) -> ToolCall | None:
        try:
            call = json.loads(text)
            name, arguments = call["name"], call["arguments"]
            if not isinstance(name, str) or not isinstance(arguments, dict):
                return None
            written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
            (name + written).encode()  # half a surrogate pair is no character
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        index, self._calls = self._calls, self._calls + 1
        return ToolCall(id=f"call_{secrets.token_hex(12)}", name=name, arguments=written, index=index)


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `mark`."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
