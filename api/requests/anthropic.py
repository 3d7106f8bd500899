"""Bodies of Anthropic's Messages API (https://docs.anthropic.com/en/api/messages).

As in `api/requests/bodies.py`, what clients are known to send is honoured, ignored and named, or refused with a word on
what to send instead; what nobody is known to send is refused."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.requests.bodies import PositiveInt
from api.requests.ignored import Ignored


class TextBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str
    cache_control: Ignored = UNSET
    citations: Ignored = UNSET


class ThinkingBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """Thinking of an answer that is sent back. `signature` is what the answer had; it proves nothing here."""

    thinking: str
    signature: str | UnsetType = UNSET
    cache_control: Ignored = UNSET


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Thinking that another service has encrypted: it cannot be shown to the model."""


class ToolUseBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Ignored = UNSET
    caller: Ignored = UNSET


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    """An image, which a model of text cannot see."""


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document"):
    """A document."""


class SearchResultBlock(msgspec.Struct, tag_field="type", tag="search_result"):
    """A result of a search."""


ResultPart = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[ResultPart] | UnsetType | None = UNSET
    is_error: bool | UnsetType | None = UNSET
    cache_control: Ignored = UNSET


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)


class MessageParam(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ClientTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that the client runs."""

    type: Literal["custom"] | UnsetType | None = UNSET
    name: str
    description: str | UnsetType | None = UNSET
    input_schema: dict[str, Any]
    strict: bool | UnsetType | None = UNSET
    cache_control: Ignored = UNSET
    defer_loading: Ignored = UNSET
    input_examples: Ignored = UNSET
    eager_input_streaming: Ignored = UNSET
    allowed_callers: Ignored = UNSET


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | UnsetType = UNSET
    disable_parallel_tool_use: bool | UnsetType = UNSET


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    user_id: str | None = None


class CountBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/messages/count_tokens`: how many tokens a prompt has."""

    model: str
    messages: list[MessageParam]
    system: str | list[TextBlock] | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Ignored = UNSET
    context_management: Ignored = UNSET
    mcp_servers: Ignored = UNSET
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


class MessagesBody(CountBody, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/messages`: a turn in Anthropic's form."""

    max_tokens: PositiveInt
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    service_tier: Ignored = UNSET
    container: Ignored = UNSET
    inference_geo: Ignored = UNSET
    speed: Ignored = UNSET


messages_decoder = msgspec.json.Decoder(MessagesBody)
count_decoder = msgspec.json.Decoder(CountBody)
