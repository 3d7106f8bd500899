"""Turns as conversations: messages as the model was shown them, its answer, and what a user kept of it."""

from typing import Any

import msgspec

from api.requests.messages import ChatMessage, canonical, tool_call
from core.events import Completion, Reward
from core.ports import Renderer
from core.records.text_edits import applied, are_sound

Message = dict[str, Any]
RAW_ROLE = "prompt"
"""The role of the one message that a raw completion has."""


class Conversations:
    """Reads turns with the tokenizer and the parser that they were made with."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def prompt(self, turn: Completion) -> list[Message] | None:
        """Return the messages that were answered; None where they are no conversation, or of a form unknown here."""
        if not turn.messages or turn.messages[0].get("role") == RAW_ROLE:
            return None
        try:
            messages = msgspec.convert(turn.messages, list[ChatMessage])
        except msgspec.ValidationError:
            return None
        return [canonical(message) for message in messages]

    def answer(self, turn: Completion) -> Message:
        """Return the answer as it was delivered, with its thinking."""
        has_thought = any(segment.kind == "thinking" for segment in turn.segments)
        thought = self._read(turn, turn.token_ids)[1] if has_thought else ""
        return _message(turn.text, thought, calls_of(turn))

    def kept(self, turn: Completion, reward: Reward) -> Message | None:
        """Return the answer with what the user put in the place of its parts; None where no exact edit may teach.

        The scorer has put into the reward the last exact texts of those who let their words teach."""
        if not reward.edits or not are_sound(reward.edits, len(turn.token_ids)):
            return None
        text, thought, calls = self._read(turn, turn.token_ids)
        new_text, new_thought, new_calls = self._read(turn, applied(turn.token_ids, reward.edits))
        behind = text.removeprefix(turn.text)  # which a stop string cut off
        if not (text.startswith(turn.text) and new_text.endswith(behind)):
            return None
        if len(calls) != len(new_calls) or len(calls) != len(turn.tool_calls) or thought != new_thought:
            return None
        ids = [call.id for call in turn.tool_calls]
        named = [tool_call(each, *call) for each, call in zip(ids, new_calls, strict=True)]
        return _message(new_text.removesuffix(behind), new_thought, named)

    def _read(self, turn: Completion, token_ids: tuple[int, ...]) -> tuple[str, str, list[tuple[str, str]]]:
        """Return text, thinking and calls of an answer's tokens."""
        is_chat = not (turn.messages and turn.messages[0].get("role") == RAW_ROLE)
        parser = self._renderer.parser(tools=turn.tools if is_chat else None, after=turn.prompt_token_ids)
        deltas = (parser.feed(token_ids), parser.finish())
        calls = [(call.name, call.arguments) for delta in deltas for call in delta.tool_calls]
        return "".join(delta.content for delta in deltas), "".join(delta.reasoning for delta in deltas), calls


def calls_of(turn: Completion) -> list[dict[str, Any]]:
    return [tool_call(call.id, call.name, call.arguments) for call in turn.tool_calls]


def _message(text: str, thought: str, calls: list[dict[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    if thought:
        message["reasoning_content"] = thought
    return message


def tools_of(turn: Completion) -> str | None:
    """Return the tools as JSON, which TRL takes: their schemas have no columns in common. None where there are none."""
    return msgspec.json.encode(turn.tools).decode() if turn.tools else None
