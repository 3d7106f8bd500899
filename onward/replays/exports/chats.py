"""Turns as chats: messages as Hugging Face's chat templates, and with them TRL and verl, take them."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.events import Completion, ToolCall
from serving.rendering import ModelRenderer

Message = dict[str, Any]
RAW_PROMPT = "raw_prompt"
"""Why a turn is no chat: it continues a text, which has no messages."""


def prompt_of(turn: Completion) -> list[Message] | None:
    """Return the messages of a request, as the model was shown them; None where it was no chat."""
    if not turn.messages or any(message["role"] == "prompt" for message in turn.messages):
        return None
    return [_shown(message) for message in turn.messages]


def sampled_message(turn: Completion, renderer: ModelRenderer) -> Message:
    """Return the answer as it was delivered, with the thinking that its tokens hold."""
    message: Message = {"role": "assistant", "content": turn.text}
    if any(segment.kind == "thinking" for segment in turn.segments):
        message["reasoning_content"] = _read(turn, turn.token_ids, renderer)[1]
    return message | _with_calls(turn.tool_calls, turn.tool_calls)


def kept_message(turn: Completion, token_ids: Sequence[int], renderer: ModelRenderer) -> Message:
    """Return the message that a user's tokens are, in place of the turn's own.

    Its calls have the ids of the turn's own at their place, which later messages name."""
    content, reasoning, calls = _read(turn, token_ids, renderer)
    message: Message = {"role": "assistant", "content": content}
    return message | ({"reasoning_content": reasoning} if reasoning else {}) | _with_calls(calls, turn.tool_calls)


def _read(turn: Completion, token_ids: Sequence[int], renderer: ModelRenderer) -> tuple[str, str, list[ToolCall]]:
    """Return what tokens say in a turn's place: content, thinking, calls."""
    parser = renderer.parser(tools=turn.tools, after=turn.prompt_token_ids)
    parts = [parser.feed(token_ids), parser.finish()]
    calls = [call for part in parts for call in part.tool_calls]
    return "".join(part.content for part in parts), "".join(part.reasoning for part in parts), calls


def _with_calls(calls: Sequence[ToolCall], own: Sequence[ToolCall]) -> Message:
    return {"tool_calls": [_call(call, own) for call in calls]} if calls else {}


def _call(call: ToolCall, own: Sequence[ToolCall]) -> Message:
    name = own[call.index].id if call.index < len(own) else f"call_{call.index}"
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _shown(message: Mapping[str, Any]) -> Message:
    content = message.get("content")
    text = "".join(part["text"] for part in content) if isinstance(content, list) else content or ""
    shown: Message = {"role": message["role"], "content": text}
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        shown["reasoning_content"] = reasoning
    if calls := message.get("tool_calls"):
        shown["tool_calls"] = [_said_call(call) for call in calls]
    return shown | {field: message[field] for field in ("tool_call_id", "name") if message.get(field) is not None}


def _said_call(call: Mapping[str, Any]) -> Message:
    function = call["function"]
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }
