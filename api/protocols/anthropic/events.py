"""A streamed answer in Anthropic's events: one block after another, each begun, added to, and ended.

https://docs.anthropic.com/en/docs/build-with-claude/streaming has them."""

from typing import Any

import msgspec

from api.http.errors import error_response
from api.protocols.anthropic.answers import (
    message_of,
    stop_reason_of,
    text_block,
    thinking_block,
    tool_block,
    usage_of,
)
from api.protocols.anthropic.errors import in_anthropics_shape
from api.protocols.exchange import StreamableExchange
from api.protocols.onward_info import onward_info
from api.protocols.streaming import named_event
from api.turns.answer_ids import MESSAGE
from api.turns.turn import Turn, TurnDelta
from core import codec

_encode = msgspec.json.Encoder(enc_hook=codec.plain).encode


class MessageExchange(StreamableExchange):
    """The answer to one request of the Messages API."""

    protocol = "messages"
    id_prefix = MESSAGE
    _index = -1
    _open: str | None = None  # the type of the block that is being written

    def answer(self) -> bytes:
        return _encode(message_of(self.id, self.model, self.turns[0]))

    def first_events(self) -> bytes:
        (turn,) = self.turns
        message = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": msgspec.to_builtins(usage_of(turn)) | {"output_tokens": 0},
            "onward": onward_info(turn),
        }
        return _event("message_start", message=message)

    def delta_events(self, turn: Turn, delta: TurnDelta) -> bytes:
        events = b""
        if delta.reasoning:
            events += self._go_on("thinking", thinking_block("", ""))
            events += self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            events += self._go_on("text", text_block(""))
            events += self._delta({"type": "text_delta", "text": delta.content})
        for call in delta.tool_calls:
            events += self._end_block() + self._begin_block("tool_use", {**tool_block(call), "input": {}})
            events += self._delta({"type": "input_json_delta", "partial_json": call.arguments}) + self._end_block()
        return events

    def last_events(self) -> bytes:
        (turn,) = self.turns
        events = b"" if turn.text or turn.tool_calls else self._go_on("text", text_block(""))
        events += self._end_block()
        ended = {"stop_reason": stop_reason_of(turn), "stop_sequence": turn.stop_string}
        events += _event("message_delta", delta=ended, usage=usage_of(turn), onward=onward_info(turn))
        return events + _event("message_stop")

    def error_events(self, error: Exception) -> bytes:
        return named_event("error", error_response(error, in_anthropics_shape)[1])

    def _go_on(self, kind: str, block: dict[str, Any]) -> bytes:
        """Begin a block, unless one of this kind is open."""
        return b"" if self._open == kind else self._end_block() + self._begin_block(kind, block)

    def _begin_block(self, kind: str, block: dict[str, Any]) -> bytes:
        self._index += 1
        self._open = kind
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _end_block(self) -> bytes:
        """End the open block, if there is one; one of thinking with its signature, which names the turn."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        signed = {"type": "signature_delta", "signature": self.turns[0].inference_id}
        return (self._delta(signed) if kind == "thinking" else b"") + _event("content_block_stop", index=self._index)


def _event(kind: str, **fields: object) -> bytes:
    return named_event(kind, _encode({"type": kind, **fields}))
