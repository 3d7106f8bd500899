"""Answers as models of each family write them, and what becomes of broken ones."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from family_files import KIN, write_files
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.turns.segments import segments_of, text_ends
from core.events import TokenRange
from core.ports import OutputDelta
from serving.rendering import ModelRenderer, load_renderer
from serving.rendering.formats.calls import typed
from serving.rendering.parser import TokenPlaces

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "lines": {"type": "array"},
                    "count": {"type": "integer"},
                    "note": {"type": ["string", "null"]},
                },
            },
        },
    }
    for name in ("read_file", "edit_file")
]
Calls = list[tuple[str, dict[str, Any]]]
ONE: Calls = [("read_file", {"path": "a.py"})]
TWO: Calls = [*ONE, ("edit_file", {"path": "7", "lines": [1, 2], "count": 3, "note": None})]
THOUGHT = "I should look.\n\nSurely."

_XML = """<tool_call>
<function=read_file>
<parameter=path>
a.py
</parameter>
</function>
</tool_call>"""
_XML_2 = """<tool_call>
<function=edit_file>
<parameter=path>
7
</parameter>
<parameter=lines>
[1, 2]
</parameter>
<parameter=count>
3
</parameter>
<parameter=note>
null
</parameter>
</function>
</tool_call>"""
_GLM = "<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n</tool_call>"
_GLM_2 = (
    "<tool_call>edit_file\n<arg_key>path</arg_key>\n<arg_value>7</arg_value>\n<arg_key>lines</arg_key>\n"
    "<arg_value>[1, 2]</arg_value>\n<arg_key>count</arg_key>\n<arg_value>3</arg_value>\n"
    "<arg_key>note</arg_key>\n<arg_value>null</arg_value>\n</tool_call>"
)
_JSON = '{"name": "read_file", "%s": {"path": "a.py"}}'
_JSON_2 = '{"name": "edit_file", "%s": {"path": "7", "lines": [1, 2], "count": 3, "note": null}}'
_ARGUMENTS_2 = '{"path": "7", "lines": [1, 2], "count": 3, "note": null}'
_HERMES = [f"<tool_call>\n{text % 'arguments'}\n</tool_call>" for text in (_JSON, _JSON_2)]
_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
_V31 = "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
_CALL = "<|start|>assistant<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s<|call|>"
_ANALYSIS = f"<|channel|>analysis<|message|>{THOUGHT}<|end|>"
_BARE = "<｜tool▁call▁begin｜>f {}"
_GEMMA = '<|tool_call>call:read_file{path:<|"|>a.py<|"|>}<tool_call|>'
_GEMMA_2 = '<|tool_call>call:edit_file{path:<|"|>7<|"|>,lines:[1,2],count:3,note:null}<tool_call|>'


def _deepseek(form: str) -> str:
    calls = [form % ("read_file", '{"path": "a.py"}'), form % ("edit_file", _ARGUMENTS_2)]
    return "<｜tool▁calls▁begin｜>" + "\n".join(calls) + "<｜tool▁calls▁end｜>"


# Of which model; the answer; its content, thinking and calls.
RECORDED: dict[str, tuple[str, str, str, str, Calls]] = {
    "Qwen 2.5, two calls": ("Qwen 2.5", "I look.\n" + "\n".join(_HERMES), "I look.\n", "", TWO),
    "Qwen 3, thinking and a call": ("Qwen 3", f"<think>\n{THOUGHT}\n</think>\n\n{_HERMES[0]}", "", THOUGHT, ONE),
    "Qwen 3, thinking and text": ("Qwen 3", f"<think>\n{THOUGHT}\n</think>\n\nIt is 7.", "It is 7.", THOUGHT, []),
    "Qwen 3, no thought": ("Qwen 3", "<think>\n\n</think>\n\nIt is 7.", "It is 7.", "", []),
    "Qwen 3.5, thinking that the prompt opened": (
        "Qwen 3.5", f"{THOUGHT}\n</think>\n\n{_XML}\n{_XML_2}", "", THOUGHT, TWO
    ),
    "Llama, one call": ("Llama 3.1", _JSON % "parameters", "", "", ONE),
    "Llama, two calls": ("Llama 3.1", f"{_JSON % 'parameters'}; {_JSON_2 % 'parameters'}", "", "", TWO),
    "Llama, a tag before": ("Llama 3.1", "<|python_tag|>" + _JSON % "parameters", "", "", ONE),
    "Mistral, a list": (
        "Mistral", f"[TOOL_CALLS] [{_JSON % 'arguments'}, {_JSON_2 % 'arguments'}]", "", "", TWO
    ),
    "Mistral, names": (
        "Mistral", f'[TOOL_CALLS]read_file[ARGS]{{"path": "a.py"}}[TOOL_CALLS]edit_file[ARGS]{_ARGUMENTS_2}', "", "",
        TWO,
    ),
    "Mistral, a name and an id": (
        "Mistral", 'So: [TOOL_CALLS]read_file[CALL_ID]abc123def[ARGS]{"path": "a.py"}', "So: ", "", ONE
    ),
    "DeepSeek V3": ("DeepSeek V3", f"{THOUGHT}\n</think>\n\n{_deepseek(_V3)}", "", THOUGHT, TWO),
    "DeepSeek V3.1": ("DeepSeek V3.1", f"{THOUGHT}</think>I look.{_deepseek(_V31)}", "I look.", THOUGHT, TWO),
    "gpt-oss, a call": ("gpt-oss", _ANALYSIS + _CALL % ("read_file", '{"path": "a.py"}'), "", THOUGHT, ONE),
    "gpt-oss, a preamble and a call": (
        "gpt-oss",
        _ANALYSIS + "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        + _CALL % ("read_file", '{"path": "a.py"}'),
        "I look.", THOUGHT, ONE,
    ),
    "gpt-oss, a call as its template writes it": (
        "gpt-oss", ' to=functions.read_file<|channel|>commentary json<|message|>{"path": "a.py"}<|call|>', "", "", ONE
    ),
    "gpt-oss, an answer": (
        "gpt-oss", f"{_ANALYSIS}<|start|>assistant<|channel|>final<|message|>It is 7.<|return|>", "It is 7.", THOUGHT,
        [],
    ),
    "GLM, thinking and two calls": (
        "GLM 4.5", f"\n<think>{THOUGHT}</think>\nI look.\n{_GLM}\n{_GLM_2}", "I look.\n", THOUGHT, TWO
    ),
    "Gemma 4, thinking and two calls": (
        "Gemma 4", f"<|channel>thought\n{THOUGHT}\n<channel|>{_GEMMA}{_GEMMA_2}", "", THOUGHT, TWO
    ),
    "Gemma 3, text alone": ("Gemma 3", "<tool_call> is text here", "<tool_call> is text here", "", []),
    "SmolLM2, text alone": ("SmolLM2", _HERMES[0], _HERMES[0], "", []),
}  # fmt: skip

# Of which model; the answer; what of it becomes content (None: all).
BROKEN: dict[str, tuple[str, str, str | None]] = {
    "Qwen, no JSON": ("Qwen 2.5", "<tool_call>\n{'name'}\n</tool_call>", None),
    "Qwen, cut off": ("Qwen 2.5", '<tool_call>\n{"name": "rea', None),
    "Qwen 3.5, no end of a parameter": ("Qwen 2.5 of 3.5", _XML.replace("</parameter>\n", ""), None),
    "Qwen 3.5, text between": ("Qwen 2.5 of 3.5", _XML.replace("\n</f", "\nso\n</f"), None),
    "Llama, no JSON": ("Llama 3.1", '{"name": "f", "parameters": {', None),
    "Llama, text after": ("Llama 3.1", _JSON % "parameters" + " so", None),
    "Mistral, no JSON": ("Mistral", "[TOOL_CALLS] [{]", None),
    "Mistral, no calls": ("Mistral", "[TOOL_CALLS] []", None),
    "Mistral, no name": ("Mistral", '[TOOL_CALLS][ARGS]{"a": 1}', None),
    "DeepSeek, no separator": ("DeepSeek V3.1", f"</think>{_BARE}<｜tool▁call▁end｜>", f"{_BARE}<｜tool▁call▁end｜>"),
    "DeepSeek, cut off": ("DeepSeek V3.1", f"</think><｜tool▁calls▁begin｜>{_BARE}", _BARE),
    "gpt-oss, no JSON": ("gpt-oss", _CALL % ("f", "{"), (_CALL % ("f", "{")).removesuffix("<|call|>")),
    "gpt-oss, cut off": ("gpt-oss", (_CALL % ("f", "{}")).removesuffix("<|call|>"), None),
    "GLM, a key without a value": ("GLM 4.5", "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>", None),
    "Gemma 4, a bare text": ("Gemma 4", "<|tool_call>call:f{a:b}<tool_call|>", None),
    "Gemma 4, too deep": ("Gemma 4", "<|tool_call>call:f{a:" + "[" * 99 + "<tool_call|>", None),
}


@pytest.fixture(scope="module")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelRenderer]:
    root = tmp_path_factory.mktemp("families")
    made = {name: load_renderer(write_files(root / str(at), kin)) for at, (name, kin) in enumerate(KIN.items())}
    return made | {"Qwen 2.5 of 3.5": load_renderer(root / "0", family="qwen_coder")}


def encoded(renderer: ModelRenderer, text: str) -> tuple[int, ...]:
    """Return the tokens of an answer, its marks as they are."""
    ids = renderer._vocabulary.encode(text, inner=True)
    stop = renderer.stop_token_ids[0]
    return ids if ids and ids[-1] in renderer.stop_token_ids else (*ids, stop)


def prompt_of(renderer: ModelRenderer) -> tuple[int, ...]:
    return renderer.render([{"role": "user", "content": "fix f"}], () if renderer.tools_refused else TOOLS)


def read(
    renderer: ModelRenderer, ids: Sequence[int], cuts: Iterable[int] = ()
) -> tuple[str, str, Calls, list[OutputDelta]]:
    """Return content, thinking, calls and deltas of an answer that arrives cut at these places."""
    parser = renderer.parser(tools=TOOLS, after=prompt_of(renderer))
    places = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    deltas = [parser.feed(ids[start:end]) for start, end in pairwise(places)]
    deltas.append(parser.finish())
    calls = [(call.name, json.loads(call.arguments)) for delta in deltas for call in delta.tool_calls]
    content, reasoning = ("".join(getattr(delta, name) for delta in deltas) for name in ("content", "reasoning"))
    return content, reasoning, calls, deltas


@pytest.mark.parametrize("case", RECORDED)
def test_an_answer_is_read_as_its_family_writes_it(renderers: dict[str, ModelRenderer], case: str) -> None:
    model, text, *expected = RECORDED[case]
    ids = encoded(renderers[model], text)
    content, reasoning, calls, deltas = read(renderers[model], ids)
    assert [content, reasoning, calls] == expected
    assert sum(delta.broken_calls for delta in deltas) == 0
    assert [call.index for delta in deltas for call in delta.tool_calls] == list(range(len(calls)))


@pytest.mark.parametrize("case", RECORDED)
def test_token_by_token_it_is_the_same(renderers: dict[str, ModelRenderer], case: str) -> None:
    model, text, *expected = RECORDED[case]
    content, reasoning, calls, _ = read(renderers[model], encoded(renderers[model], text), range(10_000))
    assert [content, reasoning, calls] == expected


@pytest.mark.parametrize("case", [*RECORDED, *BROKEN])
def test_character_by_character_too(renderers: dict[str, ModelRenderer], case: str) -> None:
    """Marks that are no tokens of their own arrive in parts."""
    model, text, *_ = RECORDED.get(case) or BROKEN[case]
    family = renderers[model].family
    read_by = [
        family.parser(TOOLS, thinks=renderers[model].has_thinking, is_thinking=model.startswith("Deep")) for _ in "ab"
    ]
    whole = [read_by[0].read(text, last=False), read_by[0].read("", last=True)]
    parts = [*(read_by[1].read(letter, last=False) for letter in text), read_by[1].read("", last=True)]
    for name in ("content", "reasoning"):
        assert "".join(getattr(each, name) for each in whole) == "".join(getattr(each, name) for each in parts)
    assert [call for each in whole for call in each.calls] == [call for each in parts for call in each.calls]
    assert sum(each.broken_calls for each in whole) == sum(each.broken_calls for each in parts)


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("cuts", [(), range(10_000)], ids=["whole", "token by token"])
def test_a_call_that_is_none_is_content(renderers: dict[str, ModelRenderer], case: str, cuts: Iterable[int]) -> None:
    model, text, expected = BROKEN[case]
    content, reasoning, calls, deltas = read(renderers[model], encoded(renderers[model], text), cuts)
    assert (content, reasoning, calls) == (text if expected is None else expected, "", [])
    assert sum(delta.broken_calls for delta in deltas) == 1


@pytest.mark.parametrize("case", [case for case in RECORDED if RECORDED[case][4]])
def test_a_call_that_max_tokens_cuts_off_is_no_call(renderers: dict[str, ModelRenderer], case: str) -> None:
    """Wherever an answer is cut, what came of it is whole calls, and the rest is content or thinking."""
    model, text, _, _, expected = RECORDED[case]
    whole = renderers[model]._vocabulary.encode(text, inner=True)
    for end in range(len(whole)):
        _, reasoning, calls, deltas = read(renderers[model], whole[:end], range(10_000))
        assert calls == expected[: len(calls)]
        assert THOUGHT.startswith(reasoning)
        assert sum(delta.broken_calls for delta in deltas) <= 1


@pytest.mark.parametrize(
    ("model", "opening", "closing"),
    [
        ("Qwen 3", "<think>", "</think>"),
        ("GLM 4.5", "<think>", "</think>"),
        ("Gemma 4", "<|channel>thought\n", "<channel|>"),
        ("gpt-oss", "<|channel|>analysis<|message|>", "<|end|>"),
    ],
)
def test_a_call_within_thinking_is_a_thought(
    renderers: dict[str, ModelRenderer], model: str, opening: str, closing: str
) -> None:
    for cuts in ((), range(10_000)):
        thought = f"Shall I {_HERMES[0]}, {_GLM} or {_GEMMA}?"
        text = f"{opening}{thought}{closing}" + ("<|start|>assistant<|channel|>final<|message|>" * (model == "gpt-oss"))
        content, reasoning, calls, _ = read(renderers[model], encoded(renderers[model], text + "no"), cuts)
        assert (content, reasoning, calls) == ("no", thought, [])


def test_thinking_stands_at_the_beginning_only(renderers: dict[str, ModelRenderer]) -> None:
    text = "The mark <think> opens, </think> closes."
    assert read(renderers["Qwen 3"], encoded(renderers["Qwen 3"], text))[:2] == (text, "")


def test_thinking_that_never_ends_is_thinking(renderers: dict[str, ModelRenderer]) -> None:
    ids = renderers["Qwen 3"]._vocabulary.encode("<think>\nhm </thin")
    assert read(renderers["Qwen 3"], ids, range(99))[:2] == ("", "hm </thin")


def test_without_tools_a_call_is_text_and_thinking_is_read(renderers: dict[str, ModelRenderer]) -> None:
    made = renderers["Qwen 3"]
    parser = made.parser(tools=())
    deltas = [parser.feed(encoded(made, f"<think>\nhm\n</think>\n\n{_HERMES[0]}")), parser.finish()]
    assert "".join(delta.content for delta in deltas) == _HERMES[0]
    assert "".join(delta.reasoning for delta in deltas) == "hm"
    assert not any(delta.tool_calls or delta.broken_calls for delta in deltas)


def test_text_that_merely_goes_on_is_not_read_at_all(renderers: dict[str, ModelRenderer]) -> None:
    made = renderers["Qwen 3"]
    text = f"<think>hm</think>{_HERMES[0]}"
    parser = made.parser()
    assert parser.feed(encoded(made, text)).content + parser.finish().content == text


def test_text_that_is_no_harmony_is_content(renderers: dict[str, ModelRenderer]) -> None:
    made = renderers["gpt-oss"]
    for text in ("It is 7.", "<|start|>assistant", "<|start|>", "<", "a<|end|>b", "<|end|>", "<|start|><|start|>"):
        for cuts in ((), range(99)):
            content = read(made, made._vocabulary.encode(text), cuts)[0]
            assert content == text.replace("<|end|>", "")


def test_an_answer_of_json_that_is_no_call_is_not_broken(renderers: dict[str, ModelRenderer]) -> None:
    made, text = renderers["Llama 3.1"], '{"a": [1, 2]} and so on'
    content, _, calls, deltas = read(made, encoded(made, text), range(99))
    assert (content, calls, sum(delta.broken_calls for delta in deltas)) == (text, [], 0)


# ------------------------------------------------------------------------------------------------ spans

SPANS = {
    "Qwen 3": (f"<think>\n{THOUGHT}\n</think>", "\n\nI look.\n", _HERMES[0]),
    "Qwen 3.5": (f"{THOUGHT}\n</think>", "\n\nI look.\n", _XML),
    "DeepSeek V3.1": (f"{THOUGHT}</think>", "I look.", _deepseek(_V31)),
    "GLM 4.5": (f"\n<think>{THOUGHT}</think>", "\nI look.\n", _GLM),
    "Gemma 4": (f"<|channel>thought\n{THOUGHT}\n<channel|>", "I look.", _GEMMA),
    "gpt-oss": (
        _ANALYSIS, "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>",
        _CALL % ("read_file", '{"path": "a.py"}'),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", SPANS)
def test_each_token_is_of_thinking_answer_or_tool(renderers: dict[str, ModelRenderer], model: str) -> None:
    made = renderers[model]
    parts = [made._vocabulary.encode(text, inner=True) for text in SPANS[model]]
    ids = encoded(made, "".join(SPANS[model]))
    found = segments_of(made, prompt_of(made), ids, TOOLS)
    assert [segment.kind for segment in found] == ["thinking", "answer", "tool"]
    assert (found[0].start, found[0].end, found[-1].end) == (0, len(parts[0]), len(ids))
    said = b"".join(made.token_bytes(token) for token in ids[found[1].start : found[1].end]).decode()
    assert "I look." in said
    assert "read_file" not in said
    ends = text_ends(made, ids, found, "I look.")
    spoken = [token for token, before, after in zip(ids, (0, *ends), ends, strict=False) if after > before]
    assert (len(ends), ends[0], ends[-1]) == (len(ids), 0, 7)
    assert b"".join(map(made.token_bytes, spoken)).decode().strip() == "I look."
    assert text_ends(made, ids, found, "I look. ") == text_ends(made, ids, found, "") == ()


@pytest.mark.parametrize("case", [case for case in RECORDED if RECORDED[case][4]])
def test_each_call_knows_its_tokens(renderers: dict[str, ModelRenderer], case: str) -> None:
    """They say that call, whole, and nothing of another one, however the answer arrives."""
    model, text, _, _, expected = RECORDED[case]
    made, ids = renderers[model], encoded(renderers[model], text)
    seen = []
    for cuts in ((), range(10_000), range(0, 10_000, 3)):
        calls = [call for delta in read(made, ids, cuts)[3] for call in delta.tool_calls]
        ranges = [call.token_range for call in calls if call.token_range is not None]
        said = [b"".join(map(made.token_bytes, ids[each.start : each.end])).decode() for each in ranges]
        assert len(said) == len(expected)
        for place, (words, (name, arguments)) in enumerate(zip(said, expected, strict=True)):
            assert name in words
            assert all(key in words and str(arguments["path"]) in words for key in arguments)
            assert not any(other in words for other, _ in expected[:place] + expected[place + 1 :])
        assert all(before.end <= after.start for before, after in pairwise(ranges))
        seen.append(ranges)
    assert seen[0] == seen[1] == seen[2]


def test_a_call_has_the_tokens_that_share_a_character() -> None:
    places = TokenPlaces()
    for piece in (b"a\xe2\x9c", b"\x93", b"", b"b", b"c\xf0\x9f", b"\xa6", b"\x9c"):
        places.add((piece,))
    assert places.take(1, 2) == TokenRange(start=0, end=2)
    assert places.take(2, 3) == TokenRange(start=3, end=4)
    assert places.take(4, 5) == TokenRange(start=4, end=7)
    assert places.take(4, 5) is None


def test_a_character_that_was_cut_at_the_end_is_of_the_last_token() -> None:
    places = TokenPlaces()
    places.add([b"ab", "é".encode()[:1]])
    assert places.take(0, 3) == TokenRange(start=0, end=2)


# ------------------------------------------------------------------------------------------------ any answer

PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "{", "}", '"name"', ";", "so ", "\n"]
PIECES += ["<arg_key>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>"]
PIECES += ["analysis", " to=functions.f", "<|tool_call>", "<tool_call|>", "call:f{", "<|channel>thought\n", "assistant"]
PIECES += ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", '{"name": "f", "arguments": {}}', "é🦜"]


@settings(max_examples=150, deadline=None)
@given(
    model=st.sampled_from(list(KIN)), pieces=st.lists(st.sampled_from(PIECES), max_size=12), is_thinking=st.booleans()
)
@example(model="gpt-oss", pieces=["<think>", "<|start|>", "<|message|>"], is_thinking=False)
def test_any_text_is_read_alike_in_any_parts(
    renderers: dict[str, ModelRenderer], model: str, pieces: list[str], is_thinking: bool
) -> None:
    made, text = renderers[model], "".join(pieces)
    seen = []
    for parts in ([text], list(text), pieces):
        reader = made.family.parser(TOOLS, thinks=made.has_thinking, is_thinking=is_thinking)
        words = [*(reader.read(part, last=False) for part in parts), reader.read("", last=True)]
        joined = tuple("".join(getattr(each, name) for each in words) for name in ("content", "reasoning"))
        calls = [(call, at) for each in words for call, at in zip(each.calls, each.call_ranges, strict=True)]
        seen.append((joined, calls, sum(each.broken_calls for each in words)))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", "string", "7"),
        ("7", "integer", 7),
        ("7", None, 7),
        ("null", "string", "null"),
        ("null", ["string", "null"], None),
        ("None", ["string", "null"], None),
        ("True", "boolean", True),
        ("false", "boolean", False),
        ("None", None, None),
        ("so", "integer", "so"),
        ("NaN", "number", "NaN"),
        ('{"a": [1]}', "object", {"a": [1]}),
        ("[" * 5000, "array", "[" * 5000),
    ],
)
def test_a_value_without_quotes_has_the_type_of_its_schema(text: str, kind: Any, value: Any) -> None:
    assert typed(text, {} if kind is None else {"type": kind}) == value


def test_the_families_of_the_settings_are_those_there_are() -> None:
    from core.settings.serving import ServingSettings
    from serving.rendering.families import names

    chosen = ServingSettings.model_fields["family"].annotation
    assert set(chosen.__args__) == {"auto", *names()}  # type: ignore[union-attr]


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    from core.errors import ConfigError

    write_files(tmp_path, KIN["SmolLM2"])
    with pytest.raises(ConfigError, match=r"serving\.family: parrot is no family; known: gpt_oss"):
        load_renderer(tmp_path, family="parrot")
