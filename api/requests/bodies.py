"""Request bodies of the two hot routes. Unknown fields are refused; None and absence mean OpenAI's default.

Fields follow https://platform.openai.com/docs/api-reference; `top_k`, `min_p`, `session_id`, `turn_type` and
`session_done` are ours."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.requests.messages import ChatMessage
from api.requests.tools import Tool

MAX_CHOICES = 16
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5

Penalty = Annotated[float, Meta(ge=-2, le=2)]
TurnType = Literal["main", "side", "summary"]
PositiveInt = Annotated[int, Meta(ge=1, le=1 << 31)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None


class GenerationBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that chat and raw completions share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: PositiveInt | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: str | list[str] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    session_id: str | None = None
    session_done: bool | None = None


class ChatBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: dict[str, Any] | None = None
    turn_type: TurnType | None = None


class CompletionBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`: inline suggestions."""

    prompt: str
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None


chat_decoder = msgspec.json.Decoder(ChatBody)
completion_decoder = msgspec.json.Decoder(CompletionBody)
