"""The messages of a chat request: their types, their order, and the canonical form they are rendered and hashed in."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from core.errors import InvalidRequest


class TextPart(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


Content = str | list[TextPart]


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """A function's name and arguments.

    The last field is what OpenAI's client adds to a streamed answer that it put together; it must be empty."""

    name: str
    arguments: str
    parsed_arguments: UnsetType | None = UNSET


class ToolCallPart(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | UnsetType = UNSET  # as streaming clients echo it


class SystemMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="system"):
    content: Content
    name: str | UnsetType | None = UNSET


class DeveloperMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="developer"):
    """A system message under OpenAI's newer name."""

    content: Content
    name: str | UnsetType | None = UNSET


class UserMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="user"):
    content: Content
    name: str | UnsetType | None = UNSET


class AssistantMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="assistant"):
    """An answer of the model.

    `reasoning_content`, or `reasoning`, is its thinking. The last five fields are what OpenAI's client sends back with
    an answer; they must be empty."""

    content: Content | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallPart] | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    annotations: list[None] | UnsetType | None = UNSET
    audio: UnsetType | None = UNSET
    function_call: UnsetType | None = UNSET
    parsed: UnsetType | None = UNSET


class ToolMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: str
    name: str | UnsetType | None = UNSET


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


def check_order(messages: list[ChatMessage]) -> None:
    """Check the order of messages. Raises InvalidRequest naming the message.

    System messages come first, then the user; each tool result after the call it answers, each call answered before
    anybody else speaks; the user or a tool last."""
    if not messages:
        raise InvalidRequest("messages must not be empty", param="messages", code="empty_messages")
    waiting: set[str] = set()
    opened = False
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        match message:
            case SystemMessage() | DeveloperMessage():
                if opened:
                    raise _order(place, "a system message must stand before all others")
                continue
            case ToolMessage():
                if message.tool_call_id not in waiting:
                    raise _order(f"{place}.tool_call_id", "no call with this id waits for a result")
                waiting.remove(message.tool_call_id)
                continue
        if waiting:
            raise _order(place, f"the tool calls {sorted(waiting)} have no results yet")
        if isinstance(message, AssistantMessage):
            if not opened:
                raise _order(place, "the user speaks first")
            waiting = _calls(message, place)
        opened = True
    if waiting:
        raise _order("messages", f"the tool calls {sorted(waiting)} have no results yet")
    if not isinstance(messages[-1], UserMessage | ToolMessage):
        raise _order(f"messages[{len(messages) - 1}]", "the last message must be the user's or a tool's")


def _calls(message: AssistantMessage, place: str) -> set[str]:
    ids = [call.id for call in message.tool_calls or ()]
    if len(set(ids)) < len(ids):
        raise _order(f"{place}.tool_calls", "two calls have the same id")
    if not ids and not isinstance(message.content, str | list):
        raise _order(f"{place}.content", "an assistant message needs content or tool calls")
    return set(ids)


def _order(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {what}", param=param, code="invalid_messages")


def canonical(message: ChatMessage) -> dict[str, Any]:
    """Return the message as the model is shown it.

    Text parts are joined by line breaks, developer is system, and empty fields are left out. Two spellings of one
    message are the same here, so that a client's echo of an answer finds its turn."""
    role = message.__struct_config__.tag
    plain: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": text_of(message.content)}
    if message.name:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    elif isinstance(message, AssistantMessage):
        if message.tool_calls:
            plain["tool_calls"] = [tool_call(c.id, c.function.name, c.function.arguments) for c in message.tool_calls]
        if thinking := message.reasoning_content or message.reasoning:
            plain["reasoning_content"] = thinking
    return plain


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_of(content: Content | UnsetType | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content) if isinstance(content, list) else ""
