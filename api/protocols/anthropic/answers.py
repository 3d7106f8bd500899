"""Answers in Anthropic's shape (https://docs.anthropic.com/en/api/messages), with an `onward` object."""

from typing import Any, Literal

import msgspec

from api.protocols.onward_info import OnwardInfo, onward_info
from api.turns.turn import Turn
from core.events import FinishReason, ToolCall

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_REASONS: dict[FinishReason, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesUsage(msgspec.Struct, kw_only=True, gc=False):
    """Counts of tokens; `input_tokens` are those of the prompt that no cache had."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(msgspec.Struct, kw_only=True, gc=False):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage
    onward: OnwardInfo


class TokenCount(msgspec.Struct, gc=False):
    """The answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


def usage_of(turn: Turn) -> MessagesUsage:
    cached = turn.capture.cached_tokens
    return MessagesUsage(
        input_tokens=len(turn.plan.place.prompt_token_ids) - cached,
        cache_read_input_tokens=cached,
        output_tokens=len(turn.capture.token_ids),
    )


def thinking_block(text: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def tool_block(call: ToolCall) -> dict[str, Any]:
    """Return a call, whose arguments are a JSON object, as the parser makes sure."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": msgspec.Raw(call.arguments.encode())}


def stop_reason_of(turn: Turn) -> StopReason:
    assert turn.finish_reason is not None
    return "stop_sequence" if turn.stop_string is not None else _REASONS[turn.finish_reason]


def message_of(answer_id: str, model: str, turn: Turn) -> MessageAnswer:
    """Return the whole answer."""
    content = [thinking_block(turn.reasoning, turn.inference_id)] if turn.reasoning else []
    if turn.text or not turn.tool_calls:
        content.append(text_block(turn.text))
    content += [tool_block(call) for call in turn.tool_calls]
    return MessageAnswer(
        id=answer_id,
        model=model,
        content=content,
        stop_reason=stop_reason_of(turn),
        stop_sequence=turn.stop_string,
        usage=usage_of(turn),
        onward=onward_info(turn),
    )
