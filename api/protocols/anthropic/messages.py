"""The translation of Anthropic's messages to a chat's: their blocks become messages, calls and results."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from api.protocols.translation import Conversation, unsupported
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
    FunctionCall,
    Part,
    SystemMessage,
    TextPart,
    ToolCallPart,
    UserMessage,
)
from core.errors import InvalidRequest


class Messages(Conversation[Block | ResultPart]):
    """A chat that is told in Anthropic's messages."""

    def add_system(self, system: str | list[TextBlock]) -> None:
        """Add the system prompt, which comes first."""
        if system:
            self.add(SystemMessage(self.content(system, "system")), "system")

    def add_message(self, message: MessageParam, place: str) -> None:
        """Add what a message holds. Raises InvalidRequest naming a block that cannot be shown to the model."""
        if isinstance(message.content, str):
            kinds = {"user": UserMessage, "assistant": AssistantMessage, "system": SystemMessage}
            self.add(kinds[message.role](content=message.content), place)
        elif message.role == "assistant":
            self.add(self._answer(message.content, place), place)
        elif message.role == "system":
            self.add(SystemMessage(self.content(message.content, f"{place}.content")), place)
        else:
            self._add_users(message.content, place)

    def _add_users(self, blocks: Sequence[Block], place: str) -> None:
        """Add the results of tools, each as a message of its own, and the user's words between and after them."""
        words: list[Part] = []
        for index, block in enumerate(blocks):
            here = f"{place}.content[{index}]"
            if not isinstance(block, ToolResultBlock):
                words.append(TextPart(self.text(block, here)))
                continue
            if words:
                self.add(UserMessage(words), place)
                words = []
            self._take_ignored(block, here)
            if block.is_error:
                self.ignored.append("messages[].content[].is_error")
            content = self.content(block.content or "", f"{here}.content")
            self.add_result(content, block.tool_use_id, here, "tool_use_id")
        if words or not blocks:
            self.add(UserMessage(words), place)

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

    def text(self, part: Block | ResultPart, place: str) -> str:
        self._take_ignored(part, place)
        if not isinstance(part, TextBlock):
            raise _refused(place, part)
        return part.text

    def _take_ignored(self, block: Block | ResultPart, place: str) -> None:
        self.ignored += take_ignored(block, "system[]." if place.startswith("system") else "messages[].content[].")


def _refused(place: str, block: Block | ResultPart) -> InvalidRequest:
    kind = block.__struct_config__.tag
    why = f"a block of type {kind} has no place here, or the model, which takes text alone, cannot be shown it"
    return unsupported(place, why)
