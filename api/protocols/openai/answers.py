"""Answers in OpenAI's shapes (https://platform.openai.com/docs/api-reference/chat/object), with an `onward` object.

(`gc=False`: such objects live for a request and are in no cycle; the collector need not walk them.)"""

from codecs import getincrementaldecoder
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from api.protocols.logprobs import TokenLogprob, visible_end
from api.protocols.onward_info import OnwardInfo, OnwardName
from api.turns.turn import Turn
from core.events import ToolCall
from core.ports import Renderer

_UTF8: Final = getincrementaldecoder("utf-8")


class PromptTokensDetails(msgspec.Struct, gc=False):
    cached_tokens: int


class Usage(msgspec.Struct, kw_only=True, gc=False):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatLogprobs(msgspec.Struct, gc=False):
    content: list[TokenLogprob]
    refusal: None = None


class Message(msgspec.Struct, kw_only=True, gc=False):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str
    onward: OnwardInfo | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    onward: OnwardInfo | UnsetType = UNSET


class MessageDelta(msgspec.Struct, kw_only=True, gc=False):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    onward: OnwardName | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    onward: OnwardInfo | UnsetType = UNSET


class TextLogprobs(msgspec.Struct, kw_only=True, gc=False):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None
    onward: OnwardName | UnsetType = UNSET


class TextCompletion(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
    onward: OnwardInfo | UnsetType = UNSET


def usage_of(turns: list[Turn]) -> Usage:
    """Count the tokens of all choices, and those of the prompt once."""
    prompt = len(turns[0].plan.place.prompt_token_ids)
    completion = sum(len(turn.capture.token_ids) for turn in turns)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(max(turn.capture.cached_tokens for turn in turns)),
    )


def tool_call_dict(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def text_logprobs(renderer: Renderer, turn: Turn, start: int, end: int) -> TextLogprobs:
    """Return the log-probabilities in the older shape.

    `text_offset` counts the characters of the answer before each token; of those that are parts of one character it is
    that character's place."""
    end = visible_end(renderer, turn, end)
    token_ids = turn.capture.token_ids[:end]
    texts = [renderer.token_text(token_id) for token_id in token_ids[start:]]
    offsets, offset, decoder = [], 0, _UTF8(errors="replace")
    for token_id in token_ids:
        offsets.append(offset)
        offset += len(decoder.decode(renderer.token_bytes(token_id)))
    top = [{renderer.token_text(i): value for i, value in entry} for entry in turn.capture.top_logprobs[start:end]]
    return TextLogprobs(
        tokens=texts,
        token_logprobs=turn.capture.logprobs[start:end],
        top_logprobs=top or None,
        text_offset=offsets[start:],
    )
