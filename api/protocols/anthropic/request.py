"""The translation of Anthropic's request to a chat's."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from api.http.foreign import convert_foreign
from api.protocols.anthropic.claude_code import user_and_session
from api.protocols.anthropic.messages import AnthropicConversation
from api.requests.anthropic import ClientTool, CountBody, MessagesBody, ToolChoice
from api.requests.bodies import ChatBody
from api.requests.ignored import take_ignored, take_unknown
from api.requests.tools import FunctionDefinition, Tool, check_count
from core.errors import InvalidRequest
from core.ids import SessionId

_OF_SERVERS = ("web_search", "web_fetch", "code_execution", "tool_search", "mcp_toolset")
_PLACES = {
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "response_format": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}


class TranslatedMessages:
    """A chat's body, the places in the request that its fields came from, and the names of what was ignored.

    `session`: the one that Claude Code names."""

    def __init__(self, body: CountBody, unknown: Sequence[str] = ()) -> None:
        """Translate a body, of which `unknown` fields were left out. Raises InvalidRequest naming the field."""
        conversation = AnthropicConversation()
        conversation.add_system(body.system or "")
        for index, message in enumerate(body.messages):
            conversation.add(message, f"messages[{index}]")
        self.places = {**_PLACES, **conversation.places}
        self.ignored = [*unknown, *take_ignored(body), *conversation.ignored]
        self.session: SessionId | None = None
        self.chat = ChatBody(model=body.model, messages=conversation.messages, tools=self._tools(body.tools or []))
        self._force(body.tool_choice)
        self._shape(body)
        if isinstance(body, MessagesBody):
            self._sample(body)

    def _tools(self, tools: list[dict[str, Any]]) -> list[Tool] | None:
        check_count(tools)
        known: list[Tool] = []
        for index, given in enumerate(tools):
            kind = given.get("type")
            if kind not in (None, "custom"):
                self._leave_out(kind, f"tools[{index}].type")
                continue
            tool, left = _client_tool(given, f"tools[{index}]")
            self.ignored += [*left, *take_ignored(tool, "tools[].")]
            for field, theirs in (("parameters", "input_schema"), ("name", "name"), ("strict", "strict")):
                self.places[f"tools[{len(known)}].function.{field}"] = f"tools[{index}].{theirs}"
            function = FunctionDefinition(tool.name, tool.description or UNSET, tool.input_schema, tool.strict or UNSET)
            known.append(Tool(function))
        return known or None

    def _leave_out(self, kind: object, place: str) -> None:
        """Leave out a tool that Anthropic's servers run: the model is not shown it, and so never calls it."""
        known = next((name for name in _OF_SERVERS if isinstance(kind, str) and kind.startswith(name)), None)
        if known is None:
            message = f"{place}: the model knows no such tool; describe it with a name and an input_schema"
            raise InvalidRequest(message, param=place, code="unsupported")
        self.ignored.append(f"tools[].{known}")  # never in the client's own spelling

    def _force(self, choice: ToolChoice | None) -> None:
        if choice is None:
            return
        if choice.disable_parallel_tool_use is not UNSET:
            self.chat.parallel_tool_calls = not choice.disable_parallel_tool_use
        if choice.type == "tool":
            if choice.name is UNSET:
                raise InvalidRequest("missing field: tool_choice.name", param="tool_choice.name", code="missing_field")
            self.chat.tool_choice = {"type": "function", "function": {"name": choice.name}}
        else:
            self.chat.tool_choice = "required" if choice.type == "any" else choice.type

    def _shape(self, body: CountBody) -> None:
        """Take the schema that the answer is to follow."""
        config = dict(body.output_config or {})
        shape = body.output_format or config.pop("format", None)
        if body.output_format is not None:
            self.places["response_format"] = "output_format"
        if config.pop("effort", None) is not None:
            self.ignored.append("output_config.effort")
        self.ignored += take_unknown(config, (), "output_config.")
        if shape is not None:
            place = self.places["response_format"]
            shape = dict(shape) if isinstance(shape, dict) else {}
            self.ignored += take_unknown(shape, ("type", "schema"), f"{place}.")
            if shape.get("type") != "json_schema" or "schema" not in shape:
                raise InvalidRequest(f'{place}: must be {{"type": "json_schema", "schema": ...}}', param=place)
            self.places["response_format.json_schema.schema"] = f"{place}.schema"
            self.chat.response_format = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": shape["schema"], "strict": True},
            }

    def _sample(self, body: MessagesBody) -> None:
        chat = self.chat
        chat.max_tokens, chat.stream = body.max_tokens, body.stream
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
        chat.stop = body.stop_sequences or None
        chat.user, self.session = user_and_session(None if body.metadata is None else body.metadata.user_id)


def _client_tool(given: dict[str, Any], place: str) -> tuple[ClientTool, list[str]]:
    """Return a tool, and the names of its unknown fields. Raises InvalidRequest."""
    try:
        return convert_foreign(given, ClientTool, "tools[].")
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{place}: {error}", param=place, code="invalid_tool") from None
