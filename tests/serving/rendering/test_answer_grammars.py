"""Whatever follows a grammar of answers is read by its family's parser as what was wanted."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    call = f'{begun}read_file{form.before_arguments}{{"path": "a.py", "line": 7}}{form.after_arguments}{form.end}'
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
    singles = {TOKENIZER.decode_bytes([token]): token for token in range(9, 512)}
    return matcher.consume_tokens([singles[bytes([byte])] for byte in text.encode()]) and matcher.is_accepting()


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
    without = {"gpt_oss", "gemma", "glm", "qwen_coder", "plain"}
    assert (not family.calls) == (family.name in without)


@pytest.mark.parametrize("text", ["<|im_end|>", "a<tool_call>b", "<|endoftext|>"])
def test_the_text_of_a_special_token_is_text_within_json(text: str) -> None:
    grammar = load_renderer(TINY).grammar(WantedAnswer(schema={"const": text}, field="response_format"), ()).text
    for seed in range(5):
        answer, is_whole = written(grammar, seed, 100)
        assert is_whole
        assert json.loads(answer) == text
