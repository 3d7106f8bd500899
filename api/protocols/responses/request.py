"""The translation of a request of the Responses API to a chat's."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from api.http.foreign import convert_foreign
from api.protocols.responses.items import ResponsesConversation, decode_item
from api.requests.bodies import ChatBody
from api.requests.ignored import take_ignored
from api.requests.messages import AssistantMessage, ChatMessage, SystemMessage
from api.requests.responses import CustomTool, FunctionTool, ResponsesBody
from api.requests.tools import FunctionDefinition, Tool, check_count
from core.errors import InvalidRequest

LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
_OF_SERVERS = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search", "namespace")
_PLACES = {
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
TEXT_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
Items = list[tuple[msgspec.Struct, str]]


def items_of(body: ResponsesBody) -> tuple[Items, list[str]]:
    """Return each item of the input with its place, and the names of unknown fields, which were left out.

    Raises InvalidRequest naming an item that is none."""
    if isinstance(body.input, str):
        item, _ = decode_item({"role": "user", "content": body.input}, "input")
        return [(item, "input")], []
    items, unknown = Items(), list[str]()
    for index, given in enumerate(body.input or ()):
        item, left = decode_item(given, f"input[{index}]")
        items.append((item, f"input[{index}]"))
        unknown += left
    return items, unknown


class TranslatedResponses:
    """A chat's body, the places in the request that its fields came from, and the names of what was ignored.

    `custom` names the tools whose argument is a text."""

    def __init__(
        self,
        body: ResponsesBody,
        items: Items,
        before: Sequence[ChatMessage],
        referenced: dict[str, AssistantMessage],
        unknown: Sequence[str],
    ) -> None:
        """Translate a body, after a conversation before it; `unknown` fields were left out of it.

        Raises InvalidRequest naming the field."""
        _check(body)
        conversation = ResponsesConversation(referenced)
        if body.instructions:
            conversation.add(SystemMessage(body.instructions), "instructions")
        for message in before:
            conversation.add(message, "previous_response_id")
        for item, place in items:
            conversation.add_item(item, place)
        self.places = {**_PLACES, "messages": "input", **conversation.places}
        self.ignored = [*unknown, *self._left_out(body), *conversation.ignored]
        self.custom: set[str] = set()
        self.chat = ChatBody(
            model=body.model,
            messages=conversation.messages,
            tools=self._tools(body.tools or []),
            tool_choice=_choice(body.tool_choice),
            parallel_tool_calls=body.parallel_tool_calls,
            max_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logprobs=LOGPROBS in (body.include or ()) or bool(body.top_logprobs),
            top_logprobs=body.top_logprobs,
            response_format=_shape(body),
            stream=body.stream,
            user=body.user,
            metadata=body.metadata,
            session_id=body.session_id,
            session_done=body.session_done,
            turn_type=body.turn_type,
            service_tier=body.service_tier,
        )

    @staticmethod
    def _left_out(body: ResponsesBody) -> list[str]:
        """Take what changes nothing out of the body, and return its names."""
        found = take_ignored(body)
        for name in ("reasoning", "text", "stream_options"):
            part = getattr(body, name)
            found += [] if part is None else take_ignored(part, f"{name}.")
        found += [f"include.{name}" for name in body.include or () if name != LOGPROBS]
        found += ["truncation"] if body.truncation == "auto" else []
        return found + (["max_tool_calls"] if body.max_tool_calls is not None else [])

    def _tools(self, tools: list[dict[str, Any]]) -> list[Tool] | None:
        check_count(tools)
        known: list[Tool] = []
        for index, given in enumerate(tools):
            place, kind = f"tools[{index}]", given.get("type")
            if kind not in ("function", "custom"):
                self._leave_out(kind, f"{place}.type")
                continue
            tool, left = _tool(given, place)
            self.ignored += [*left, *take_ignored(tool, "tools[].")]
            self.places[f"tools[{len(known)}].function"] = place
            if isinstance(tool, CustomTool):
                self.custom.add(tool.name)
                function = FunctionDefinition(tool.name, tool.description, TEXT_INPUT)
            else:
                function = FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict or UNSET)
            known.append(Tool(function))
        return known or None

    def _leave_out(self, kind: object, place: str) -> None:
        """Leave out a tool that OpenAI's servers run: the model is not shown it, and so never calls it."""
        left_out = next((name for name in _OF_SERVERS if isinstance(kind, str) and kind.startswith(name)), None)
        if left_out is None:
            message = f"{place}: the model knows no such tool; send tools of type function or custom"
            raise InvalidRequest(message, param=place, code="unsupported")
        self.ignored.append(f"tools[].{left_out}")  # never in the client's own spelling


def _tool(given: dict[str, Any], place: str) -> tuple[FunctionTool | CustomTool, list[str]]:
    """Return a tool, and the names of its unknown fields. Raises InvalidRequest."""
    kind: type[FunctionTool | CustomTool] = FunctionTool if given["type"] == "function" else CustomTool
    try:
        return convert_foreign(given, kind, "tools[].")
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{place}: {error}", param=place, code="invalid_tool") from None


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return the choice in a chat's words."""
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom") and set(choice) == {"type", "name"}:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _shape(body: ResponsesBody) -> dict[str, Any] | None:
    """Return the form of the answer in a chat's words."""
    shape = None if body.text is None else body.text.format
    if shape is None or shape.get("type") != "json_schema":
        return shape
    return {"type": "json_schema", "json_schema": {name: value for name, value in shape.items() if name != "type"}}


def _check(body: ResponsesBody) -> None:
    """Refuse what this service does not do. Raises InvalidRequest naming the field, and what to send instead."""
    for name, instead in (
        ("conversation", "send previous_response_id, or the whole conversation as input"),
        ("prompt", "send the prompt's text as instructions or input"),
        ("background", "ask again without it: answers come while you wait"),
    ):
        if getattr(body, name) not in (None, False):
            raise InvalidRequest(f"{name}: {instead}", param=name, code="unsupported")
    for index, name in enumerate(body.include or ()):
        if name != LOGPROBS and name not in _INCLUDED:
            raise InvalidRequest(f"include[{index}]: nothing of this name is ever there", param=f"include[{index}]")
