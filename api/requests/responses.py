"""The body of OpenAI's Responses API, which is that of Open Responses (https://www.openresponses.org), too.

https://platform.openai.com/docs/api-reference/responses has it.

As in `api/requests/bodies.py`, what clients are known to send is honoured, ignored and named, or refused with a word on
what to send instead; what nobody is known to send is refused."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.requests.bodies import MAX_TOP_LOGPROBS, Penalty, PositiveInt, TurnType
from api.requests.ignored import Ignored


class TextIn(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="input_text"):
    text: str


class TextOut(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    text: str
    annotations: Ignored = UNSET
    logprobs: Ignored = UNSET
    parsed: Ignored = UNSET


class PlainText(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class RefusalOut(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    refusal: str


class ImageIn(msgspec.Struct, tag_field="type", tag="input_image"):
    """An image, which a model of text cannot see."""


class FileIn(msgspec.Struct, tag_field="type", tag="input_file"):
    """A file."""


class AudioIn(msgspec.Struct, tag_field="type", tag="input_audio"):
    """A sound."""


ContentPart = TextIn | TextOut | PlainText | RefusalOut | ImageIn | FileIn | AudioIn


class MessageItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What somebody said; `type` may be left out."""

    type: Literal["message"] | UnsetType = UNSET
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    id: str | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET
    phase: Ignored = UNSET


class ReasoningText(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="summary_text"):
    text: str


class ReasoningItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The model's thinking, sent back. `encrypted_content` is another service's, and says nothing here."""

    type: Literal["reasoning"]
    id: str | UnsetType | None = UNSET
    summary: list[SummaryText] | UnsetType = UNSET
    content: list[ReasoningText] | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET
    encrypted_content: Ignored = UNSET


class CallItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET
    namespace: Ignored = UNSET
    parsed_arguments: Ignored = UNSET


class CallOutputItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: str | list[ContentPart]
    id: str | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET


class CustomCallItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call whose argument is a text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    id: str | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET
    namespace: Ignored = UNSET


class ItemReference(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An item of an earlier answer, by its id."""

    type: Literal["item_reference"] | UnsetType | None = UNSET
    id: str


ITEMS: dict[str, type[msgspec.Struct]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": CallOutputItem,
    "item_reference": ItemReference,
}


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function"]
    name: str
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET
    defer_loading: Ignored = UNSET


class CustomTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool that takes a text; a grammar of the text is shown to nobody and forced on nobody."""

    type: Literal["custom"]
    name: str
    description: str | UnsetType | None = UNSET
    format: Ignored = UNSET
    defer_loading: Ignored = UNSET


class Reasoning(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    effort: Ignored = UNSET
    summary: Ignored = UNSET
    generate_summary: Ignored = UNSET
    context: Ignored = UNSET


class TextSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: dict[str, Any] | None = None
    verbosity: Ignored = UNSET


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_obfuscation: Ignored = UNSET


class ResponsesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/responses`: a turn in the form of OpenAI's Responses API."""

    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: PositiveInt | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    text: TextSettings | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Ignored = UNSET
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: PositiveInt | None = None
    service_tier: str | None = None  # as in the chat
    safety_identifier: Ignored = UNSET
    prompt_cache_key: Ignored = UNSET
    prompt_cache_retention: Ignored = UNSET
    client_metadata: Ignored = UNSET
    session_id: str | None = None
    session_done: bool | None = None
    turn_type: TurnType | None = None


responses_decoder = msgspec.json.Decoder(ResponsesBody)
