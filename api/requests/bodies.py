"""Request bodies of the two hot routes. None and absence mean OpenAI's default.

Fields follow https://platform.openai.com/docs/api-reference; `top_k`, `min_p`, `session_id`, `turn_type` and
`session_done` are ours. What clients are known to send is honoured, or ignored and named (`api/requests/ignored.py`),
or refused with a word on what to send instead; what nobody knows is left out and named (`api/http/foreign.py`).
docs/clients.md has the table."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from api.requests.ignored import Ignored
from api.requests.messages import ChatMessage
from api.requests.tools import Tool

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5

Penalty = Annotated[float, Meta(ge=-2, le=2)]
TurnType = Literal["main", "side", "summary"]
PositiveInt = Annotated[int, Meta(ge=1, le=1 << 31)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Ignored = UNSET


class GenerationBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that chat and raw completions share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None  # -1 and 0: off
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: str | list[str] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] | None = None
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    session_id: str | None = None
    session_done: bool | None = None
    repetition_penalty: float | None = None
    service_tier: str | None = None  # flex: low priority; others change nothing
    prompt_cache_key: Ignored = UNSET
    prompt_cache_retention: Ignored = UNSET
    safety_identifier: Ignored = UNSET
    cache_prompt: Ignored = UNSET
    min_tokens: Ignored = UNSET


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
    modalities: list[str] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    reasoning_effort: Ignored = UNSET
    verbosity: Ignored = UNSET
    prediction: Ignored = UNSET
    chat_template_kwargs: Ignored = UNSET


class CompletionBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`: inline suggestions."""

    prompt: str | list[str | int]
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None


chat_decoder = msgspec.json.Decoder(ChatBody)
completion_decoder = msgspec.json.Decoder(CompletionBody)
