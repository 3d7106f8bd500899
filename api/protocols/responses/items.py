"""The translation of a response's input items to a chat's messages: what the model said in one turn is one message."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from api.http.foreign import convert_foreign
from api.requests.ignored import take_ignored
from api.requests.messages import (
    AssistantMessage,
    ChatMessage,
    DeveloperMessage,
    FunctionCall,
    Part,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from api.requests.responses import (
    ITEMS,
    CallItem,
    CallOutputItem,
    ContentPart,
    CustomCallItem,
    ItemReference,
    MessageItem,
    PlainText,
    ReasoningItem,
    RefusalOut,
    TextIn,
    TextOut,
)
from core.errors import InvalidRequest

Speaker = type[UserMessage | SystemMessage | DeveloperMessage]
_SPEAKERS: dict[str, Speaker] = {"user": UserMessage, "system": SystemMessage, "developer": DeveloperMessage}
_Text = TextIn | TextOut | PlainText


def decode_item(given: Mapping[str, Any], place: str) -> tuple[msgspec.Struct, list[str]]:
    """Decode an item, whose type decides what it may hold; return it with the names of unknown fields.

    Raises InvalidRequest naming it."""
    kind = given.get("type", "message" if "role" in given else "item_reference")
    known = ITEMS.get(kind) if isinstance(kind, str) else None
    if known is None:
        message = f"{place}.type: the model is shown {', '.join(ITEMS)}, and nothing else"
        raise InvalidRequest(message, param=f"{place}.type", code="unsupported")
    try:
        return convert_foreign(given, known, "input[].")
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{place}: {error}", param=place, code="invalid_field") from None


class ResponsesConversation:
    """A chat's messages, the places in the request that they came from, and the names of what was ignored."""

    def __init__(self, referenced: Mapping[str, AssistantMessage]) -> None:
        """Begin one. `referenced` has what items that are named by their id alone say."""
        self._messages: list[ChatMessage] = []
        self.places: dict[str, str] = {}
        self.ignored: list[str] = []
        self._referenced = referenced
        self._said: AssistantMessage | None = None  # by the model, and perhaps not all of it yet
        self._thought: list[str] = []  # of what was said: there may be thousands of parts, which are joined once

    @property
    def messages(self) -> list[ChatMessage]:
        self._join_thought()
        return self._messages

    def _join_thought(self) -> None:
        if self._said is not None and len(self._thought) > 1:
            self._thought = ["".join(self._thought)]
            self._said.reasoning_content = self._thought[0]

    def add(self, message: ChatMessage, place: str) -> None:
        self._join_thought()
        self.places[f"messages[{len(self._messages)}]"] = place
        self._messages.append(message)
        self._said = message if isinstance(message, AssistantMessage) else None
        self._thought = [message.reasoning_content or ""] if isinstance(message, AssistantMessage) else []

    def add_item(self, item: msgspec.Struct, place: str) -> None:
        """Add what an item says. Raises InvalidRequest naming what the model cannot be shown."""
        self.ignored += take_ignored(item, "input[].")
        match item:
            case MessageItem(role="assistant"):
                self._say(AssistantMessage(content=self._said_text(item.content, f"{place}.content")), place)
            case MessageItem():
                content = self._content(item.content, f"{place}.content")
                self.add(_SPEAKERS[item.role](content=content), place)
            case ReasoningItem():
                texts = [part.text for part in item.content or ()] or [part.text for part in item.summary or ()]
                self._say(AssistantMessage(reasoning_content="".join(texts) or UNSET), place)
            case CallItem():
                self._call(item.call_id, item.name, item.arguments, place)
            case CustomCallItem():
                self._call(item.call_id, item.name, msgspec.json.encode({"input": item.input}).decode(), place)
            case CallOutputItem():
                self.places[f"messages[{len(self._messages)}].tool_call_id"] = f"{place}.call_id"
                self.add(ToolMessage(self._content(item.output, f"{place}.output"), item.call_id), place)
            case ItemReference():
                self._say(self._referenced[item.id], place)

    def _call(self, call_id: str, name: str, arguments: str, place: str) -> None:
        self._say(AssistantMessage(tool_calls=[ToolCallPart(call_id, FunctionCall(name, arguments))]), place)

    def _say(self, more: AssistantMessage, place: str) -> None:
        """Add what the model said to its message, or begin another where it had said such a thing already."""
        said = self._said
        if said is None or (more.content and said.content) or (more.reasoning_content and _has_spoken(said)):
            self.add(msgspec.structs.replace(more, tool_calls=[*(more.tool_calls or ())] or UNSET), place)
            return
        said.content = said.content or more.content
        self._thought += [more.reasoning_content] if more.reasoning_content else []
        if more.tool_calls:
            said.tool_calls = said.tool_calls or []
            said.tool_calls += more.tool_calls  # in place, since there may be thousands

    def _said_text(self, content: str | Sequence[ContentPart], place: str) -> str:
        """Return an answer's text: its parts are one, as they were sampled."""
        if isinstance(content, str):
            return content
        return "".join(self._text(part, f"{place}[{index}]") for index, part in enumerate(content))

    def _content(self, content: str | Sequence[ContentPart], place: str) -> str | list[Part]:
        if isinstance(content, str):
            return content
        return [TextPart(self._text(part, f"{place}[{index}]")) for index, part in enumerate(content)]

    def _text(self, part: ContentPart, place: str) -> str:
        self.ignored += take_ignored(part, "input[].content[].")
        if isinstance(part, RefusalOut):
            return part.refusal
        if isinstance(part, _Text):
            return part.text
        kind = part.__struct_config__.tag
        raise InvalidRequest(
            f"{place}: the model takes text alone, and no {kind}; send parts of type input_text",
            param=place,
            code="unsupported",
        )


def _has_spoken(message: AssistantMessage) -> bool:
    return bool(message.content or message.tool_calls)
