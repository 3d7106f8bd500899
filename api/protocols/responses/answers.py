"""Answers in the shape of the Responses API, with an `onward` object.

https://platform.openai.com/docs/api-reference/responses/object has it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from api.protocols.onward_info import OnwardInfo
from api.requests.responses import ResponsesBody
from api.turns.turn import Turn
from core.events import FinishReason, ToolCall
from core.ids import InferenceId

Status = Literal["in_progress", "completed", "incomplete"]  # of an item
ResponseStatus = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
Item = dict[str, Any]


class GivenAnswer(Protocol):
    """An answer, as it was just given or as it was stored."""

    @property
    def inference_id(self) -> InferenceId: ...
    @property
    def text(self) -> str: ...
    @property
    def tool_calls(self) -> Sequence[ToolCall]: ...
    @property
    def finish_reason(self) -> FinishReason | None: ...


class ResponsesUsage(msgspec.Struct, kw_only=True, gc=False):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Response(msgspec.Struct, kw_only=True, gc=False):
    """An answer, with the request's own words for what was asked for."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: ResponseStatus
    incomplete_details: dict[str, str] | None
    error: dict[str, str] | None = None
    model: str
    output: list[Item]
    usage: ResponsesUsage | None
    instructions: str | None
    previous_response_id: str | None
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    max_output_tokens: int | None
    max_tool_calls: int | None
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    text: dict[str, Any]
    reasoning: dict[str, Any] | None
    truncation: str
    store: bool
    background: bool = False
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None
    onward: OnwardInfo | UnsetType = UNSET


def echo(body: ResponsesBody) -> dict[str, Any]:
    """Return the fields of an answer that say what was asked for, defaults filled in."""
    return {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "tools": [_tool(tool) for tool in body.tools or ()],
        "tool_choice": body.tool_choice or "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "top_logprobs": body.top_logprobs or 0,
        "text": {"format": {"type": "text"} if body.text is None or body.text.format is None else body.text.format},
        "reasoning": {"effort": None, "summary": None},
        "truncation": "disabled",
        "store": body.store is not False,
        "metadata": body.metadata or {},
        "user": body.user,
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": False, **tool}


def usage_of(turn: Turn) -> ResponsesUsage:
    """Count tokens; those of thinking are in the segments of the turn's record, and here where it has thought."""
    prompt, output = len(turn.plan.place.prompt_token_ids), len(turn.capture.token_ids)
    return ResponsesUsage(
        input_tokens=prompt,
        input_tokens_details={"cached_tokens": turn.capture.cached_tokens},
        output_tokens=output,
        output_tokens_details={"reasoning_tokens": turn.thinking_tokens},
        total_tokens=prompt + output,
    )


def reasoning_item(turn: GivenAnswer, text: str, status: Status = "completed") -> Item:
    content = [{"type": "reasoning_text", "text": text}] if text or status != "in_progress" else []
    return {"type": "reasoning", "id": f"rs_{turn.inference_id}", "summary": [], "content": content, "status": status}


def message_item(turn: GivenAnswer, content: list[Item], status: Status) -> Item:
    return {
        "type": "message",
        "id": f"msg_{turn.inference_id}",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def text_part(text: str, logprobs: Sequence[Any] = ()) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(
    turn: GivenAnswer, number: int, call: ToolCall, custom: Collection[str], status: Status = "completed"
) -> Item:
    """Return a call, of a function or of a tool that takes a text."""
    called: Item = {"id": f"fc_{turn.inference_id}_{number}", "call_id": call.id, "name": call.name, "status": status}
    if call.name in custom:
        return {"type": "custom_tool_call", **called, "input": custom_input(call)}
    return {"type": "function_call", **called, "arguments": call.arguments}


def custom_input(call: ToolCall) -> str:
    """Return the text that the model gave to a tool which takes one; its arguments, where it wrote others."""
    given = msgspec.json.decode(call.arguments).get("input")
    return given if isinstance(given, str) else call.arguments


def output_of(
    turn: GivenAnswer, custom: Collection[str], logprobs: Sequence[Any] = (), reasoning: str = ""
) -> list[Item]:
    """Return the items of a whole answer."""
    output = [reasoning_item(turn, reasoning)] if reasoning else []
    if turn.text or not turn.tool_calls:
        output.append(message_item(turn, [text_part(turn.text, logprobs)], text_status(turn)))
    return output + [call_item(turn, number, call, custom) for number, call in enumerate(turn.tool_calls)]


def text_status(turn: GivenAnswer) -> Status:
    """Return whether a text is whole. An item does not say why it is incomplete."""
    return "completed" if status_of(turn) == "completed" else "incomplete"


def status_of(turn: GivenAnswer) -> ResponseStatus:
    """Return how an answer ended: its client may have hung up, or the engine have failed, before its end."""
    match turn.finish_reason:
        case "length":
            return "incomplete"
        case "abort":
            return "cancelled"
        case "error":
            return "failed"
        case _:
            return "completed"
