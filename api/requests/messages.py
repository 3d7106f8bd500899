"""The messages of a chat request: their types, their order, and the canonical form they are rendered and hashed in."""

from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.requests.ignored import Ignored, take_ignored
from core.errors import InvalidRequest


class TextPart(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str
    cache_control: Ignored = UNSET
    annotations: Ignored = UNSET


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    """An image, which a model of text cannot see."""


class AudioPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    """A sound."""


class FilePart(msgspec.Struct, tag_field="type", tag="file"):
    """A file."""


class RefusalPart(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    """What an answer said in refusing: text of the model's, as all else that it said."""

    text: str = msgspec.field(name="refusal")


class ThinkingPart(msgspec.Struct, tag_field="type", tag="thinking"):
    """The thinking of an answer that is sent back by parts, which changes nothing: `reasoning_content` is honoured."""


Part = TextPart | ImagePart | AudioPart | FilePart | RefusalPart | ThinkingPart
Content = str | list[Part]


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True):
    """A function's name and arguments, and what OpenAI's client adds to a streamed answer that it put together."""

    name: str
    arguments: str
    parsed_arguments: Ignored = UNSET
    provider_specific_fields: Ignored = UNSET


class ToolCallPart(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | UnsetType = UNSET  # as streaming clients echo it
    provider_specific_fields: Ignored = UNSET
    cache_control: Ignored = UNSET


class SystemMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="system"):
    content: Content
    name: str | UnsetType | None = UNSET
    cache_control: Ignored = UNSET


class DeveloperMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="developer"):
    """A system message under OpenAI's newer name."""

    content: Content
    name: str | UnsetType | None = UNSET
    cache_control: Ignored = UNSET


class UserMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="user"):
    content: Content
    name: str | UnsetType | None = UNSET
    cache_control: Ignored = UNSET


class AssistantMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="assistant"):
    """An answer of the model.

    `reasoning_content`, or `reasoning`, is its thinking. The fields that are ignored are what clients add to an answer
    before they send it back."""

    content: Content | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallPart] | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    refusal: Ignored = UNSET
    annotations: Ignored = UNSET
    audio: Ignored = UNSET
    function_call: Ignored = UNSET
    parsed: Ignored = UNSET
    provider_specific_fields: Ignored = UNSET
    thinking_blocks: Ignored = UNSET
    reasoning_details: Ignored = UNSET
    images: Ignored = UNSET
    cache_control: Ignored = UNSET


class CallTimes(msgspec.Struct, forbid_unknown_fields=True):
    """When a call was executed, by the clock of the program that did."""

    started_at: Annotated[datetime, Meta(tz=True)]
    ended_at: Annotated[datetime, Meta(tz=True)]


class ToolMessage(msgspec.Struct, forbid_unknown_fields=True, tag_field="role", tag="tool"):
    """The result of a call. `onward` is for us: the model is not shown it."""

    content: Content
    tool_call_id: str
    name: str | UnsetType | None = UNSET
    onward: CallTimes | UnsetType = UNSET
    cache_control: Ignored = UNSET
    provider_specific_fields: Ignored = UNSET


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


_OF_ANSWERS = TextPart | RefusalPart | ThinkingPart


def check_messages(messages: list[ChatMessage]) -> None:
    """Check the order of messages and what they are made of. Raises InvalidRequest naming the message.

    A tool's result follows the call that it answers, whether others have spoken since or not; the user or a tool is
    last. Calls that nobody answered were interrupted, and a later answer may use their ids again. The model may have
    thought or spoken since, as clients tell it that keep thinking, text and calls apart."""
    if not messages:
        raise InvalidRequest("messages must not be empty", param="messages", code="empty_messages")
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if isinstance(message.content, list):
            is_answer = isinstance(message, AssistantMessage)
            _check_parts(message.content, f"{place}.content", _OF_ANSWERS if is_answer else TextPart)
        if isinstance(message, AssistantMessage):
            waiting |= _calls(message, place)
        elif isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                raise _order(f"{place}.tool_call_id", "no call with this id waits for a result")
            waiting.remove(message.tool_call_id)
            _check_times(message, place)
    if not isinstance(messages[-1], UserMessage | ToolMessage):
        raise _order(
            f"messages[{len(messages) - 1}]",
            "the last message must be the user's or a tool's; to continue a text, send it to /v1/completions",
        )


def _check_times(message: ToolMessage, place: str) -> None:
    times = message.onward
    if times is not UNSET and times.ended_at < times.started_at:
        raise _order(f"{place}.onward.ended_at", "a call ends no sooner than it starts")


def _check_parts(parts: list[Part], place: str, taken: type | UnionType) -> None:
    for index, part in enumerate(parts):
        if not isinstance(part, taken):
            kind = part.__struct_config__.tag
            raise InvalidRequest(
                f"{place}[{index}]: the model takes text alone, and no {kind}; send parts of type text",
                param=f"{place}[{index}]",
                code="unsupported",
            )


def _calls(message: AssistantMessage, place: str) -> set[str]:
    ids = [call.id for call in message.tool_calls or ()]
    if len(set(ids)) < len(ids):
        raise _order(f"{place}.tool_calls", "two calls have the same id")
    return set(ids)


def _order(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {what}", param=param, code="invalid_messages")


def late_system(messages: list[ChatMessage]) -> int | None:
    """Return the place of the first system message that does not stand before all others."""
    roles = [isinstance(message, SystemMessage | DeveloperMessage) for message in messages]
    first = roles.index(False) if False in roles else len(roles)
    return roles.index(True, first) if True in roles[first:] else None


def ignored_in(messages: list[ChatMessage]) -> list[str]:
    """Take what is ignored out of messages, and return its names."""
    found: list[str] = []
    for message in messages:
        found += take_ignored(message, "messages[].")
        if isinstance(message.content, list):
            for part in message.content:
                found += take_ignored(part, "messages[].content[].")
            said: list[Part] = [part for part in message.content if not isinstance(part, ThinkingPart)]
            found += ["messages[].content[].thinking"] * (len(said) < len(message.content))
            message.content = said
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls or ():
                found += take_ignored(call, "messages[].tool_calls[].")
                found += take_ignored(call.function, "messages[].tool_calls[].function.")
    return found


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
    if not isinstance(content, list):
        return ""
    return "\n".join(part.text for part in content if isinstance(part, TextPart | RefusalPart))
