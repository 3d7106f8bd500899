"""The translation of Anthropic's messages to a chat's: their blocks become messages, calls and results."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from api.requests.anthropic import (
    Block,
    MessageParam,
    RedactedThinkingBlock,
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from api.requests.ignored import take_ignored
from api.requests.messages import (
    AssistantMessage,
    ChatMessage,
    FunctionCall,
    Part,
    SystemMessage,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from core.errors import InvalidRequest


class AnthropicConversation:
    """A chat's messages, the places in the request that they came from, and the names of what was ignored."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.places: dict[str, str] = {}
        self.ignored: list[str] = []

    def add_system(self, system: str | list[TextBlock]) -> None:
        """Add the system prompt, which comes first."""
        if system:
            self._add(SystemMessage(self._content(system, "system")), "system")

    def add(self, message: MessageParam, place: str) -> None:
        """Add what a message holds. Raises InvalidRequest naming a block that cannot be shown to the model."""
        if isinstance(message.content, str):
            kinds = {"user": UserMessage, "assistant": AssistantMessage, "system": SystemMessage}
            self._add(kinds[message.role](content=message.content), place)
        elif message.role == "assistant":
            self._add(self._answer(message.content, place), place)
        elif message.role == "system":
            self._add(SystemMessage(self._content(message.content, f"{place}.content")), place)
        else:
            self._add_users(message.content, place)

    def _add(self, message: ChatMessage, place: str) -> None:
        self.places[f"messages[{len(self.messages)}]"] = place
        self.messages.append(message)

    def _add_users(self, blocks: Sequence[Block], place: str) -> None:
        """Add the results of tools, each as a message of its own, and the user's words between and after them."""
        words: list[Part] = []
        for index, block in enumerate(blocks):
            here = f"{place}.content[{index}]"
            if not isinstance(block, ToolResultBlock):
                words.append(self._text(block, here))
                continue
            if words:
                self._add(UserMessage(words), place)
                words = []
            self._take_ignored(block, here)
            if block.is_error:
                self.ignored.append("messages[].content[].is_error")
            content = self._content(block.content or "", f"{here}.content")
            self.places[f"messages[{len(self.messages)}].tool_call_id"] = f"{here}.tool_use_id"
            self._add(ToolMessage(content, block.tool_use_id), here)
        if words or not blocks:
            self._add(UserMessage(words), place)

    def _answer(self, blocks: Sequence[Block], place: str) -> AssistantMessage:
        """Return an answer of the model. Its texts are one, as they were sampled."""
        text, thinking, calls = "", "", []
        for index, block in enumerate(blocks):
            here = f"{place}.content[{index}]"
            self._take_ignored(block, here)
            match block:
                case ThinkingBlock():
                    thinking += block.thinking
                case RedactedThinkingBlock():
                    self.ignored.append("messages[].content[].redacted_thinking")
                case ToolUseBlock():
                    arguments = msgspec.json.encode(block.input).decode()
                    calls.append(ToolCallPart(block.id, FunctionCall(block.name, arguments)))
                case TextBlock():
                    text += block.text
                case _:
                    raise _refused(here, block)
        return AssistantMessage(content=text, reasoning_content=thinking or UNSET, tool_calls=calls or UNSET)

    def _content(self, content: str | Sequence[Block] | Sequence[ResultPart], place: str) -> str | list[Part]:
        if isinstance(content, str):
            return content
        return [self._text(block, f"{place}[{index}]") for index, block in enumerate(content)]

    def _text(self, block: Block, place: str) -> TextPart:
        self._take_ignored(block, place)
        if not isinstance(block, TextBlock):
            raise _refused(place, block)
        return TextPart(block.text)

    def _take_ignored(self, block: Block, place: str) -> None:
        self.ignored += take_ignored(block, "system[]." if place.startswith("system") else "messages[].content[].")


def _refused(place: str, block: Block) -> InvalidRequest:
    kind = block.__struct_config__.tag
    return InvalidRequest(
        f"{place}: a block of type {kind} has no place here, or the model, which takes text alone, cannot be shown it",
        param=place,
        code="unsupported",
    )
