"""Whatever follows a grammar of answers is read by its family's parser as what was wanted."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import InvalidRequest
from core.events import Grammar
from core.grammars.library import grammars_of
from core.grammars.masks import Masks
from core.grammars.wanted import WantedAnswer, WantedTool
from serving.rendering import load_renderer
from serving.rendering.families import FAMILIES, Family
from serving.rendering.formats.grammar import CallForm, Thoughts, answer_grammar

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
STOPS = (2, 0)
TOKENIZER = grammars_of(TINY).tokenizer(STOPS)
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"enum": ["a.py", 'quo"ted', "{"]},
        "line": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["path", "line"],
    "additionalProperties": False,
}
NAMES = ("read", "read_file", "list-files")
TOOLS = tuple(WantedTool(name=name, schema=SCHEMA, field="tools") for name in NAMES)
SHOWN = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES]
FORMS = [(family, form) for family in FAMILIES for _, form in family.calls]


def literal(text: str) -> list[int | str]:
    """Cut as for a tokenizer without special tokens, as the shipped one has none of other families'."""
    return [text] if text else []


def written(grammar: str, seed: int, most: int) -> tuple[str, bool]:
    """Return an answer at random, and whether it came to its end."""
    masks, rng, tokens = Masks(grammars_of(TINY), Grammar(text=grammar), STOPS), random.Random(seed), list[int]()
    while len(tokens) < most:
        ids = np.unpackbits(masks.next().view(np.uint8), bitorder="little").nonzero()[0].tolist()
        token = rng.choice([each for each in ids if each in STOPS] if rng.random() < 0.1 and ids[0] in STOPS else ids)
        masks.take(token)
        if token in STOPS:
            return TOKENIZER.decode_bytes(tokens).decode(), True
        tokens.append(token)
    return TOKENIZER.decode_bytes(tokens).decode("utf-8", "replace"), False


def read(family: Family, text: str, *, thinks: bool = False, is_thinking: bool = False) -> Any:
    return family.parser(SHOWN, thinks=thinks, is_thinking=is_thinking).read(text, last=True)


@pytest.mark.parametrize(("family", "form"), FORMS, ids=lambda each: getattr(each, "name", ""))
@pytest.mark.parametrize("many", [False, True])
def test_calls_that_must_be_are_read_as_calls(family: Family, form: CallForm, many: bool) -> None:
    wanted = WantedAnswer(tools=TOOLS, must_call=True, many_calls=many, field="tool_choice")
    grammar = answer_grammar(wanted, form, None, literal)
    counts = set()
    for seed in range(12):
        text, is_whole = written(grammar, seed, 4000)
        assert is_whole
        words = read(family, text)
        assert (words.broken_calls, words.content.strip()) == (0, ""), text
        for call in words.calls:
            assert call.name in NAMES
            arguments = json.loads(call.arguments)
            assert arguments.keys() == {"path", "line"}
            assert 0 <= arguments["line"] < 100
        counts.add(len(words.calls))
    assert min(counts) == 1
    assert (max(counts) > 1) == many


@pytest.mark.parametrize(("family", "form"), FORMS, ids=lambda each: getattr(each, "name", ""))
def test_free_text_may_end_in_calls_that_follow_their_schema(family: Family, form: CallForm) -> None:
    wanted = WantedAnswer(tools=TOOLS, field="tools")
    grammar = answer_grammar(wanted, form, None, literal)
    begun = form.begin + form.before_name
    arguments = '{"path": "a.py", "line": 7}'
    if form.parameter is not None:
        one = form.parameter
        pairs = (("path", '"a.py"'), ("line", "7"))
        arguments = "".join(f"{one.before_key}{key}{one.before_value}{value}{one.after_value}" for key, value in pairs)
    call = f"{begun}read_file{form.before_arguments}{arguments}{form.after_arguments}{form.end}"
    texts = [call, "", "some text"] + ([f"some text {call}"] if form.mark else [])
    assert all(follows(grammar, text) for text in texts)
    for wrong in (call.replace("read_file", "other"), call.replace("7", "700"), call.replace("a.py", "b.py")):
        assert not follows(grammar, wrong), wrong
    for seed in range(6):
        words = read(family, written(grammar, seed, 60)[0])
        assert all(each.name in NAMES for each in words.calls)


def follows(grammar: str, text: str) -> bool:
    """Return whether a text, in tokens of single bytes, is a whole answer."""
    matcher = grammars_of(TINY).matcher(Grammar(text=grammar), STOPS)
    return matcher.consume_tokens(singles(text)) and matcher.is_accepting()


def singles(text: str) -> list[int]:
    of_bytes = {TOKENIZER.decode_bytes([token]): token for token in range(9, 512)}
    return [of_bytes[bytes([byte])] for byte in text.encode()]


@pytest.mark.parametrize("is_open", [False, True])
def test_thinking_is_free_and_ends_before_the_answer(is_open: bool) -> None:
    qwen = next(family for family in FAMILIES if family.name == "qwen")
    thoughts = Thoughts(qwen.thinking.opening, qwen.thinking.closing, is_open)
    grammar = answer_grammar(WantedAnswer(schema=SCHEMA, field="response_format"), None, thoughts, literal)
    answer = '{"path": "a.py", "line": 1}'
    opening = "" if is_open else "<think>\n"
    assert follows(grammar, f"{opening}so <b> {{ it goes</think>\n\n{answer}")
    assert follows(grammar, answer) != is_open
    assert not follows(grammar, f"{opening}so it goes</think>so")
    words = read(qwen, f"{opening}so it goes</think>\n\n{answer}", thinks=True, is_thinking=is_open)
    assert (words.reasoning, words.content) == ("so it goes", answer)


def test_json_or_calls() -> None:
    qwen = next(family for family in FAMILIES if family.name == "qwen")
    wanted = WantedAnswer(schema={"enum": ["yes"]}, tools=TOOLS, field="response_format")
    grammar = answer_grammar(wanted, qwen.calls[0][1], None, literal)
    assert follows(grammar, '"yes"')
    assert not follows(grammar, "text")
    call = '<tool_call>\n{"name": "read", "arguments": {"path": "{", "line": 0}}\n</tool_call>'
    assert follows(grammar, call)
    assert not follows(grammar, f'"yes"{call}')


def test_special_tokens_stand_for_marks_where_the_tokenizer_has_them() -> None:
    renderer = load_renderer(TINY)
    grammar = renderer.grammar(WantedAnswer(tools=TOOLS, must_call=True, many_calls=False, field="tool_choice"), ())
    mark, end = 7, 8  # <tool_call> and </tool_call>
    masks = Masks(grammars_of(TINY), grammar, renderer.stop_token_ids)
    assert np.unpackbits(masks.next().view(np.uint8), bitorder="little").nonzero()[0].tolist() == [mark]
    text = '\n{"name": "read", "arguments": {"path": "a.py", "line": 1}}\n'
    for token in (mark, *TOKENIZER.tokenize_str(text), end, 2):
        masks.take(token)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_without_a_grammar_says_so(family: Family) -> None:
    """A new form of calls has a grammar, or is among these."""
    without = {"gpt_oss", "gemma", "plain"}
    assert (not family.calls) == (family.name in without)


@pytest.mark.parametrize("text", ["<|im_end|>", "a<tool_call>b", "<|endoftext|>"])
def test_the_text_of_a_special_token_is_text_within_json(text: str) -> None:
    grammar = load_renderer(TINY).grammar(WantedAnswer(schema={"const": text}, field="response_format"), ()).text
    for seed in range(5):
        answer, is_whole = written(grammar, seed, 100)
        assert is_whole
        assert json.loads(answer) == text


PLAIN_FORMS = [(family, form) for family, form in FORMS if form.parameter is not None]
PLAIN_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "any"},
        "mode": {"type": "string", "enum": ["r", "w+"]},
        "some": {"type": ["string", "null"]},
        "flags": {"type": "array", "items": {"$ref": "#/$defs/flag"}, "maxItems": 2},
    },
    "required": ["text", "flags"],
    "$defs": {"flag": {"enum": [1, "two"]}},
}


def plain_call(form: CallForm, **values: str) -> str:
    one = form.parameter
    assert one is not None
    said = "".join(f"{one.before_key}{key}{one.before_value}{value}{one.after_value}" for key, value in values.items())
    return f"{form.before_name}put{form.before_arguments}{said}{form.after_arguments}"


@pytest.mark.parametrize(("family", "form"), PLAIN_FORMS, ids=lambda each: getattr(each, "name", ""))
def test_values_that_are_not_quoted_are_read_as_their_schema_has_them(family: Family, form: CallForm) -> None:
    tool = WantedTool(name="put", schema=PLAIN_SCHEMA, field="tools[0].function.parameters")
    grammar = answer_grammar(WantedAnswer(tools=(tool,), must_call=True, field="tool_choice"), form, None, literal)
    shown = [{"type": "function", "function": {"name": "put", "parameters": PLAIN_SCHEMA}}]
    for values, meant in (
        ({"text": "two\nlines <b> </x", "flags": "[1]"}, {"text": "two\nlines <b> </x", "flags": [1]}),
        ({"text": "", "mode": "w+", "flags": "[]"}, {"text": "", "mode": "w+", "flags": []}),
        ({"text": "1", "some": "null", "flags": '["two", 1]'}, {"text": "1", "some": None, "flags": ["two", 1]}),
    ):
        text = plain_call(form, **values)
        assert follows(grammar, text), text
        words = family.parser(shown, thinks=False, is_thinking=False).read(text, last=True)
        assert [json.loads(call.arguments) for call in words.calls] == [meant]
    for values in (
        {"text": "a"},
        {"flags": "[]"},
        {"text": "a", "flags": "[2]"},
        {"text": "a", "mode": "x", "flags": "[]"},
        {"text": "a", "flags": "[]", "other": "1"},
        *({"text": f"a{mark}b", "flags": "[]"} for mark in form.parameter.marks),  # type: ignore[union-attr]
    ):
        assert not follows(grammar, plain_call(form, **values)), values


def test_a_value_may_end_with_a_token_of_its_own() -> None:
    glm = next(form for family, form in PLAIN_FORMS if family.name == "glm")
    end = 8

    def cut(text: str) -> list[int | str]:
        """Cut as for a tokenizer in which the mark behind a value is a special token."""
        parts = [[part, end] for part in text.split("</arg_value>")]
        return [part for pair in parts for part in pair if part][:-1]

    tool = WantedTool(name="put", schema=PLAIN_SCHEMA, field="tools")
    grammar = answer_grammar(WantedAnswer(tools=(tool,), must_call=True, field="tool_choice"), glm, None, cut)
    for value in ("", "any <b> text"):
        matcher = grammars_of(TINY).matcher(Grammar(text=grammar), STOPS)
        parts = plain_call(glm, text=value, flags="[1]").split("</arg_value>")
        tokens = [token for part in parts for token in (*singles(part), end)][:-1]
        assert matcher.consume_tokens(tokens)
        assert matcher.is_accepting()


@pytest.mark.parametrize(("family", "form"), PLAIN_FORMS, ids=lambda each: getattr(each, "name", ""))
def test_what_no_unquoted_text_can_be_held_to_is_refused_by_name(family: Family, form: CallForm) -> None:
    for schema in ({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}, {"anyOf": [{}]}):
        tool = WantedTool(name="put", schema=schema, field="tools[3].function.parameters")
        with pytest.raises(InvalidRequest) as refused:
            answer_grammar(WantedAnswer(tools=(tool,), field="tools"), form, None, literal)
        assert refused.value.param == tool.field


@pytest.mark.parametrize(("family", "form"), PLAIN_FORMS, ids=lambda each: getattr(each, "name", ""))
def test_a_tool_that_is_not_strict_takes_any_parameters(family: Family, form: CallForm) -> None:
    tool = WantedTool(name="put", schema={"type": "object"}, field="tools")
    wanted = WantedAnswer(tools=(tool,), must_call=True, many_calls=False, field="tool_choice")
    grammar = answer_grammar(wanted, form, None, literal)
    shown = [{"type": "function", "function": {"name": "put", "parameters": {}}}]
    for seed in range(6):
        text, is_whole = written(grammar, seed, 4000)
        words = family.parser(shown, thinks=False, is_thinking=False).read(text, last=True)
        assert not is_whole or [call.name for call in words.calls] == ["put"]
