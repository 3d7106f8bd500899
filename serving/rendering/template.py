"""The model's chat template (jinja2, Hugging Face's conventions), in a sandbox.

What people write must not become control tokens: `<|im_end|>` in a message is eleven characters. Before a template sees
a text, every control token in it is replaced by a mark that nobody can guess; after rendering, the marks are encoded as
plain characters and everything else with its control tokens.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.errors import ConfigError, InvalidRequest
from core.text.json_objects import object_of
from serving.rendering.families import Family
from serving.rendering.vocabulary import Vocabulary

_SHORT_ID = 9
_PROBE, _ANSWER = "onward_probe", "onward_answer"
_QUESTION = {"role": "user", "content": "?"}


class ChatTemplate:
    def __init__(self, source: str, tokens: Mapping[str, str], vocabulary: Vocabulary, family: Family) -> None:
        """`tokens`: bos_token and the like, as templates name them. Raises ConfigError for a template that is none."""
        self.source = source
        self._family = family
        self._tokens = dict(tokens)
        self._vocabulary = vocabulary
        self._mark = secrets.token_hex(8)
        self._marked = re.compile(f"\ue000{self._mark}:(\\d+)\ue001")
        self._controls = _any_of(text for text in vocabulary.added.values() if text.strip("▁ \t\n"))
        self._specials = _any_of(vocabulary.special.values())
        self._ids = {content: token_id for token_id, content in vocabulary.added.items()}
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError(f"chat template: {error}") from error

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        """Return marked text (see above). Raises InvalidRequest when the template refuses the messages."""
        try:
            return self._template.render(
                messages=[self._guard_message(message) for message in messages],
                tools=[self._guard(self._tool_as_shown(tool), self._controls) for tool in tools] or None,
                add_generation_prompt=prompt,
                **self._tokens,
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise InvalidRequest(f"the model's chat template refuses this: {error}", param="messages") from error

    def plain(self, text: str) -> str:
        """Return a client's text, marked."""
        return str(self._guard(text, self._controls))

    def encode(self, marked: str, *, inner: bool = False) -> tuple[int, ...]:
        """Return the tokens of marked text, of an `inner` one where other tokens stand before it.

        Raises InvalidRequest for a text of too many tokens."""
        ids: list[int] = []
        for piece in self._pieces(marked):
            ids += self._vocabulary.encode(piece, inner=inner or bool(ids))
            self._vocabulary.check_count(len(ids))
        return tuple(ids)

    def _pieces(self, marked: str) -> Iterator[str]:
        parts = self._marked.split(marked)
        for place, part in enumerate(parts):
            if place % 2 == 0:
                if part:
                    yield part
            else:
                literal = self._vocabulary.added[int(part)]
                yield from (literal[:1], literal[1:])  # apart, neither half is a control token

    def _guard_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Hide control tokens in a message; the assistant's own marks of thinking and calling stay visible."""
        pattern = self._specials if message["role"] == "assistant" else self._controls
        read = self._as_shown(message)  # first as the template sees it: what joins or unescapes to a control token, too
        guarded: dict[str, Any] = self._guard(read, pattern)
        return guarded

    def _as_shown(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the message in the form that the family's templates take."""
        family, read = self._family, dict(message)
        if isinstance(message.get("content"), list):
            read["content"] = "".join(part["text"] for part in message["content"])
        if calls := message.get("tool_calls"):
            read["tool_calls"] = [call if family.takes_text_arguments else _with_object(call) for call in calls]
        if "reasoning_content" in read:
            read[family.reasoning_field] = read.pop("reasoning_content")
        return _with_short_ids(read) if family.has_short_ids else read

    def _tool_as_shown(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._family.needs_descriptions:
            return tool
        return {**tool, "function": {"description": "", **tool["function"]}}

    def _guard(self, value: Any, pattern: re.Pattern[str]) -> Any:
        match value:
            case str():
                return pattern.sub(lambda found: f"\ue000{self._mark}:{self._ids[found[0]]}\ue001", value)
            case Mapping():
                return {self._guard(key, pattern): self._guard(part, pattern) for key, part in value.items()}
            case list() | tuple():
                return [self._guard(part, pattern) for part in value]
        return value


def reason_against_tools(template: ChatTemplate) -> str | None:
    """Return why tools cannot be shown to the model: its template drops them, or refuses them; None where they can."""
    function = {"name": _PROBE, "description": _PROBE, "parameters": {"type": "object", "properties": {}}}
    try:
        shown = template.text([_QUESTION], [{"type": "function", "function": function}], prompt=True)
    except InvalidRequest as error:
        return error.message
    return None if _PROBE in shown else "its chat template shows no tools"


def reason_against_late_system(template: ChatTemplate) -> str | None:
    """Return why a system message cannot follow others: the template drops it, moves it or refuses it; else None."""
    answer = {"role": "assistant", "content": _ANSWER}
    try:
        shown = template.text([_QUESTION, answer, {"role": "system", "content": _PROBE}, _QUESTION], (), prompt=True)
    except InvalidRequest as error:
        return error.message
    if _PROBE not in shown:
        return "its chat template drops it"
    return None if shown.index(_PROBE) > shown.index(_ANSWER) else "its chat template puts it elsewhere"


def _any_of(contents: Any) -> re.Pattern[str]:
    longest_first = sorted(contents, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Templates expect a call's arguments as an object; OpenAI's clients send them as text."""
    function = call["function"]
    said = function["arguments"]
    arguments = object_of(said) if isinstance(said, str) else None
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_call_id" in message:
        message["tool_call_id"] = _short(message["tool_call_id"])
    if "tool_calls" in message:
        message["tool_calls"] = [{**call, "id": _short(call["id"])} for call in message["tool_calls"]]
    return message


def _short(call_id: str) -> str:
    return hashlib.blake2b(call_id.encode()).hexdigest()[:_SHORT_ID]


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, by which templates of hubs mark the assistant's words for training.

    What stands within is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - as jinja has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode JSON with the options that transformers gives templates; jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _is_default(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("name") == "default"


def read_template(directory: Path, config: Mapping[str, Any]) -> str:
    """Read chat_template.jinja or tokenizer_config.json. Raises ConfigError when the model has no template."""
    file = directory / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: {error}") from error
    found = config.get("chat_template")
    if isinstance(found, list):
        found = next((each.get("template") for each in found if _is_default(each)), None)
    if not isinstance(found, str):
        raise ConfigError(f"{directory}: the model has no chat template")
    return found
