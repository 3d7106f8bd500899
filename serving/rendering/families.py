"""The model families: how each writes its answers, and what its chat template needs.

A family is known by marks in the chat template, since the template shows the model how to answer: what is merely made
from a model of another family speaks as its template does."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.errors import ConfigError
from serving.rendering.formats.calls import schemas_of
from serving.rendering.formats.deepseek import DEEPSEEK, DEEPSEEK_CALLS
from serving.rendering.formats.function_xml import FUNCTION_XML, FUNCTION_XML_CALLS
from serving.rendering.formats.gemma import GEMMA, GEMMA_THINKING
from serving.rendering.formats.glm import GLM, GLM_CALLS
from serving.rendering.formats.grammar import CallForm
from serving.rendering.formats.harmony import ENDS, HarmonyParser
from serving.rendering.formats.hermes import HERMES, HERMES_CALLS
from serving.rendering.formats.llama import LLAMA, LLAMA_CALLS
from serving.rendering.formats.mistral import MISTRAL, MISTRAL_CALLS, MISTRAL_THINKING
from serving.rendering.formats.parser import BlockFormat, BlockParser, FormatParser, Thinking

_THINK: Final = Thinking("<think>", "</think>")
_TEXT_ALONE: Final = BlockFormat()


@dataclass(frozen=True)
class Family:
    name: str
    marks: tuple[str, ...] = ()
    """In its chat templates, all of them."""
    form: BlockFormat | None = _TEXT_ALONE
    """None: Harmony."""
    thinking: Thinking = _THINK
    """Read where the template or the tokenizer knows these marks."""
    takes_text_arguments: bool = False
    """Its template joins a call's arguments to text, and does not take an object."""
    shows_calls_to_results: bool = False
    """Its template takes from a call what it writes of the result."""
    needs_descriptions: bool = False
    """Its template takes no tool without a description."""
    has_short_ids: bool = False
    """Its template takes ids of calls of nine letters and digits only."""
    reasoning_field: str = "reasoning_content"
    """The field in which its template looks for the thinking of an answer."""
    ends: tuple[str, ...] = ()
    """Marks of which any may end an answer, beside the stop tokens."""
    ends_are_one: bool = False
    """An answer that ended with one of these needs no other after it, and its reader is shown them."""

    calls: tuple[tuple[str, CallForm], ...] = ()
    """How it writes calls, for grammars: the first whose mark is in the chat template. None: it has no grammar yet."""

    def call_form(self, template: str) -> CallForm | None:
        return next((form for mark, form in self.calls if mark in template), None)

    @property
    def reads_calls(self) -> bool:
        return self.form is None or bool(self.form.blocks)

    def parser(self, tools: Sequence[Mapping[str, Any]], *, thinks: bool, is_thinking: bool) -> FormatParser:
        """Return the parser of one answer; `is_thinking`: the prompt has opened the thinking."""
        schemas = schemas_of(tools)
        if self.form is None:
            return HarmonyParser(schemas)
        return BlockParser(self.form, schemas, self.thinking if thinks else None, is_thinking=thinks and is_thinking)


PLAIN: Final = Family("plain")
FAMILIES: Final = (
    Family(
        "gpt_oss",
        ("<|channel|>", "<|message|>"),
        None,
        shows_calls_to_results=True,
        needs_descriptions=True,
        reasoning_field="thinking",
        ends=ENDS,
        ends_are_one=True,
    ),
    Family(
        "gemma",
        ("<|tool_call>", "<tool_call|>"),
        GEMMA,
        GEMMA_THINKING,
        shows_calls_to_results=True,
        ends=("<|tool_response>", "<turn|>"),
    ),
    Family("glm", ("<tool_call>", "<arg_key>"), GLM, calls=GLM_CALLS),
    Family("qwen_coder", ("<tool_call>", "<function="), FUNCTION_XML, calls=FUNCTION_XML_CALLS),
    Family("deepseek", ("<｜tool▁call▁begin｜>",), DEEPSEEK, takes_text_arguments=True, calls=DEEPSEEK_CALLS),
    Family("mistral", ("[TOOL_CALLS]",), MISTRAL, MISTRAL_THINKING, has_short_ids=True, calls=MISTRAL_CALLS),
    Family("qwen", ("<tool_call>",), HERMES, calls=HERMES_CALLS),
    Family("llama", ("<|eot_id|>", '"parameters"'), LLAMA, calls=LLAMA_CALLS),
    PLAIN,
)


def find_family(template: str, chosen: str = "auto") -> Family:
    """Return the family of a chat template, or the chosen one; the plain one where no marks are known."""
    if chosen != "auto":
        found = next((family for family in FAMILIES if family.name == chosen), None)
        if found is None:
            raise ConfigError(f"serving.family: {chosen} is no family; known: {', '.join(names())}")
        return found
    known = (family for family in FAMILIES if family.marks and all(mark in template for mark in family.marks))
    return next(known, PLAIN)


def names() -> Iterable[str]:
    return (family.name for family in FAMILIES)
