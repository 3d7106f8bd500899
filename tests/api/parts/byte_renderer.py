"""A `Renderer` whose tokens are bytes: it does all that a real one does, and can be checked by hand."""

import codecs
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import InvalidRequest
from core.events import Grammar, TokenRange, ToolCall
from core.grammars.wanted import WantedAnswer
from core.ports import OutputDelta

START, END, CALL, END_CALL, PREFIX, SUFFIX, MIDDLE = range(256, 263)
SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
)


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def call_ids(name: str, arguments: dict[str, Any]) -> tuple[int, ...]:
    """Return the tokens of a tool call."""
    return (CALL, *ids(json.dumps({"name": name, "arguments": arguments})), END_CALL)


class ByteRenderer:
    name = "bytes"
    tokenizer_digest = "bytes-1"
    stop_token_ids = (END,)

    def __init__(self, tools_refused: str | None = None, late_system_refused: str | None = None) -> None:
        self.tools_refused, self.late_system_refused = tools_refused, late_system_refused
        self.threads: list[int] = []  # that rendered

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        self.threads.append(threading.get_ident())
        head = (START, *ids("tools" + json.dumps(tools)), END) if tools else ()
        return (*head, *self._messages(messages), START, *ids("assistant\n"))

    def extend(
        self,
        token_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        calls: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        closing = () if token_ids[-1] == END else (END,)
        return (*token_ids, *closing, *self._messages(messages), START, *ids("assistant\n"))

    def render_text(self, prompt: str, suffix: str | None) -> tuple[int, ...]:
        if suffix is None:
            return ids(prompt)
        return (PREFIX, *ids(prompt), SUFFIX, *ids(suffix), MIDDLE)

    def answer_tokens(self, text: str, *, is_first: bool) -> tuple[int, ...]:
        return ids(text)

    def parser(self, *, tools: Sequence[Mapping[str, Any]] | None = None, after: Sequence[int] = ()) -> "ByteParser":
        return ByteParser(bool(tools))

    call_grammar_refused = "bytes have no grammar"

    def grammar(self, wanted: WantedAnswer, after: Sequence[int], scope: str | None = None) -> Grammar:
        raise InvalidRequest(f"{wanted.field}: bytes have no grammar", param=wanted.field, code="unsupported")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else SPECIAL[token_id - 256].encode()

    def _messages(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        out: list[int] = []
        for message in messages:
            said = message["content"] + json.dumps(message.get("tool_calls", ""))
            if "\x00" in said:
                raise InvalidRequest("messages: no zero bytes", param="messages")
            out += (START, *ids(message["role"] + "\n" + said), END)
        return tuple(out)


class ByteParser:
    def __init__(self, tools: bool) -> None:
        self._tools = tools
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._call: list[int] | None = None
        self._calls = 0
        self._tokens = self._call_start = 0

    def feed(self, token_ids: Sequence[int]) -> OutputDelta:
        content, calls = "", []
        for token_id in token_ids:
            self._tokens += 1
            if token_id == CALL and self._tools:
                self._call, self._call_start = [], self._tokens - 1
            elif token_id == END_CALL and self._call is not None:
                said = json.loads(bytes(self._call))
                arguments = json.dumps(said["arguments"])
                calls.append(
                    ToolCall(
                        id=f"call_{self._calls}",
                        name=said["name"],
                        arguments=arguments,
                        index=self._calls,
                        token_range=TokenRange(start=self._call_start, end=self._tokens),
                    )
                )
                self._calls += 1
                self._call = None
            elif token_id == END:
                continue
            elif self._call is not None:
                self._call.append(token_id)
            elif token_id < 256:
                content += self._decoder.decode(bytes([token_id]))
            else:
                content += SPECIAL[token_id - 256]
        return OutputDelta(content=content, tool_calls=tuple(calls))

    def finish(self) -> OutputDelta:
        content = self._decoder.decode(b"", final=True)
        if self._call is not None:
            content += "<tool_call>" + bytes(self._call).decode(errors="replace")
        return OutputDelta(content=content, broken_calls=int(self._call is not None))
