"""The shipped model's renderer compared with transformers, and its properties for any text of users and models."""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from core.errors import ConfigError, InvalidRequest
from core.ports import OutputDelta
from serving.rendering import ModelRenderer, load_renderer, report_family

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
END, SPECIAL_IDS = 2, frozenset(range(7))
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>")

# Qwen3's structure: a block of tools, thinking kept in the current turn only, tool responses as the user's.
QWEN = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- '# Tools\n\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and message.content is string %}
        {%- set ns.searching = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thinking = '' %}
        {%- if '</think>' in content %}
            {%- set thinking = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or thinking) %}
            {{- '<|im_start|>assistant\n<think>\n' + thinking.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}
                {{- call.function.arguments }}
            {%- else %}
                {{- call.function.arguments | tojson }}
            {%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"to {name}", "parameters": {"type": "object"}}}
    for name in ("read_file", "edit_file")
]
Message = dict[str, Any]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('<|>{}"\n \\é🦜def'), max_size=20)
TEXTS = TEXTS.filter(lambda text: not any(mark in text for mark in renderer._vocabulary.added.values()))
TOKENS = st.lists(st.integers(0, 511), max_size=40)

renderer = load_renderer(TINY)
tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))


def copy_of_tiny(directory: Path, **texts: str) -> Path:
    """Copy the files that a renderer reads, with other content where given."""
    for file in TINY.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, directory)
    for name, text in texts.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ModelRenderer:
    return load_renderer(copy_of_tiny(tmp_path_factory.mktemp("qwen"), chat_template__jinja=QWEN))


def said(role: str, content: object) -> Message:
    return {"role": role, "content": content}


def calling(*calls: tuple[str, dict[str, Any]], content: str | None = None, as_text: bool = True) -> Message:
    made = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": json.dumps(arguments, ensure_ascii=False) if as_text else arguments,
            },
        }
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def encoded(text: str) -> tuple[int, ...]:
    """Return token ids, with control tokens in the text recognised, as when the model writes them."""
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def decoded(token_ids: Iterable[int], by: ModelRenderer = renderer) -> str:
    return b"".join(map(by.token_bytes, token_ids)).decode()


# ------------------------------------------------------------------------------------------------ rendering

ARGUMENTS = st.dictionaries(TEXTS, TEXTS | st.integers(-9, 9) | st.lists(st.booleans(), max_size=2), max_size=2)
CHATS = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), TEXTS).map(lambda pair: said(*pair))
    | st.lists(st.tuples(st.sampled_from(["read_file", "edit_file"]), ARGUMENTS), min_size=1, max_size=2).map(
        lambda calls: calling(*calls)
    ),
    min_size=1,
    max_size=5,
)


def with_objects(message: Message) -> Message:
    """Return the message with arguments as objects, as transformers expects them."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoTokenizer.from_pretrained(TINY)


@settings(max_examples=60, deadline=None)
@given(chat=CHATS, tools=st.sampled_from([[], TOOLS]))
def test_a_chat_becomes_the_tokens_that_transformers_makes_of_it(
    reference: Any, chat: list[Message], tools: list[Any]
) -> None:
    text = reference.apply_chat_template(
        [with_objects(message) for message in chat], tools=tools or None, tokenize=False, add_generation_prompt=True
    )
    assert renderer.render(chat, tools) == tuple(reference.encode(text, add_special_tokens=False))


def test_the_qwen_style_template_too(qwen: ModelRenderer, reference: Any) -> None:
    chat = [
        said("system", "be brief"),
        said("user", "größe?"),
        calling(("read_file", {"path": "ä.py", "lines": [1, None, True, 0.5]}), content="I look"),
        said("tool", "a < b & c"),
        said("tool", "'d'"),
        said("assistant", "<think>\nhm\n</think>\n\n7"),
        said("user", "sure?"),
    ]
    text = reference.apply_chat_template(
        [with_objects(message) for message in chat],
        tools=TOOLS,
        chat_template=QWEN,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert decoded(qwen.render(chat, TOOLS), qwen) == text
    assert qwen.render(chat, TOOLS) == tuple(reference.encode(text, add_special_tokens=False))


def test_words_that_are_marked_for_training_are_rendered_as_others(tmp_path: Path, reference: Any) -> None:
    """Templates of hubs mark what the assistant says, in which a name may be set that stands nowhere else."""
    source = (
        "{% set who = 'nobody' %}{%- for message in messages -%}\n<|im_start|>{{ message.role }}\n"
        "{% if message.role == 'assistant' %}\n  {% generation %}\n{% set who = 'it' %}{{ who }}{{ message.content }}"
        "<|im_end|>\n"
        "  {%- endgeneration %}\n{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}{{ who }}\n"
    )
    chat = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    made = load_renderer(copy_of_tiny(tmp_path, chat_template__jinja=source))
    text = reference.apply_chat_template(chat, chat_template=source, tokenize=False, add_generation_prompt=True)
    assert "itb<|im_end|>" in text
    assert decoded(made.render(chat, []), made) == text


def test_content_in_parts_is_the_parts_in_a_row() -> None:
    parts = [{"type": "text", "text": "fix "}, {"type": "text", "text": "it"}]
    assert renderer.render([said("user", parts)], []) == renderer.render([said("user", "fix it")], [])


def test_arguments_that_are_no_object_are_shown_as_they_came() -> None:
    for arguments in ("{broken", "[1]", "", "{" * 50_000, '{"a":' * 50_000, '{"a": "\\ud800"}'):
        message = calling(("read_file", {}))
        message["tool_calls"][0]["function"]["arguments"] = arguments
        assert f'"arguments": {arguments}}}' in decoded(renderer.render([message], []))


@pytest.mark.parametrize("template", ["{{ raise_exception('no tools here') }}", "{{ 'a' + messages[1].content }}"])
def test_what_a_template_refuses_is_the_clients_fault(tmp_path: Path, template: str) -> None:
    """A template refuses on purpose, or because of an unexpected type."""
    only_two = "{% if messages | length == 2 and messages[0].role == 'user' and messages[1].content is none %}"
    source = only_two + template + "{% endif %}" + (TINY / "chat_template.jinja").read_text()
    made = load_renderer(copy_of_tiny(tmp_path, chat_template__jinja=source))
    with pytest.raises(InvalidRequest, match="chat template refuses") as refused:
        made.render([said("user", "a"), said("assistant", None)], [])
    assert refused.value.param == "messages"


@pytest.mark.parametrize("options", ["", "indent=2", "ensure_ascii=False", "sort_keys=true, separators=(',', ':')"])
def test_templates_write_json_with_transformers_options(tmp_path: Path, reference: Any, options: str) -> None:
    source = f"{{{{ tools | tojson({options}) }}}}" + (TINY / "chat_template.jinja").read_text()
    made = load_renderer(copy_of_tiny(tmp_path, chat_template__jinja=source))
    tools = [{"type": "function", "function": {"name": "é<&'", "parameters": {}}}]
    expected = reference.apply_chat_template(
        [said("user", "a")], tools=tools, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    assert decoded(made.render([said("user", "a")], tools), made) == expected


# ------------------------------------------------------------------------------------------------ continuing

NEXT = [[said("user", "and then?")], [said("tool", "ok"), said("tool", "no")], [said("tool", "ok"), said("user", "é")]]


@settings(max_examples=60, deadline=None)
@given(question=TEXTS, answer=TEXTS, new=st.sampled_from(NEXT))
def test_a_canonical_answer_continues_as_the_whole_conversation_renders(
    question: str, answer: str, new: list[Message]
) -> None:
    chat = [said("user", question)]
    sampled = (*renderer.render(chat, TOOLS), *encoded(answer), END)
    assert renderer.extend(sampled, new) == renderer.render([*chat, said("assistant", answer), *new], TOOLS)


def test_a_canonical_answer_with_calls_continues_so_too(qwen: ModelRenderer) -> None:
    for made, between in ((renderer, ""), (qwen, "\n")):
        calls: list[tuple[str, dict[str, Any]]] = [
            ("read_file", {"path": "a.py"}),
            ("edit_file", {"line": 3, "text": '"é"\n'}),
        ]
        chat = [said("user", "fix f")]
        written = [
            f"<tool_call>\n{json.dumps({'name': n, 'arguments': a}, ensure_ascii=False)}\n</tool_call>"
            for n, a in calls
        ]
        answer = encoded("I look" + between + between.join(written))
        parser = made.parser(tools=TOOLS)
        parsed = [parser.feed((*answer, END)), parser.finish()]
        assert [(call.name, json.loads(call.arguments)) for delta in parsed for call in delta.tool_calls] == calls
        sampled = (*made.render(chat, TOOLS), *answer, END)
        new = [said("tool", "done"), said("tool", "done too")]
        assert made.extend(sampled, new) == made.render([*chat, calling(*calls, content="I look"), *new], TOOLS)


@settings(max_examples=80, deadline=None)
@given(answer=TOKENS, new=st.sampled_from(NEXT))
def test_a_continuation_begins_with_exactly_the_tokens_given(answer: list[int], new: list[Message]) -> None:
    """The model may write its answer in any way; the end mark is added only where it is missing."""
    sampled = (*renderer.render([said("user", "a")], []), *answer)
    continued = renderer.extend(sampled, new)
    assert continued[: len(sampled)] == sampled
    closed = sampled if sampled[-1] == END else (*sampled, END)
    fresh = renderer.render([said("user", "a"), said("assistant", ""), *new], [])
    assert continued == (*closed, *fresh[len(renderer.render([said("user", "a")], [])) + 1 :])


def test_thinking_that_a_fresh_rendering_drops_is_kept(qwen: ModelRenderer) -> None:
    """Within a turn both agree; after the next question only the continuation has the sampled thinking."""
    chat = [said("user", "why?")]
    answer = "<think>\nhm\n</think>\n\nso"
    sampled = (*qwen.render(chat, []), *encoded(answer), END)
    for new in ([said("tool", "1"), said("tool", "2")], [said("tool", "1")]):
        assert qwen.extend(sampled, new) == qwen.render([*chat, said("assistant", answer), *new], [])
    asked = qwen.extend(sampled, [said("user", "and?")])
    assert asked[: len(sampled)] == sampled
    assert decoded(asked[len(sampled) :]) == "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    assert "hm" not in decoded(qwen.render([*chat, said("assistant", answer), said("user", "and?")], []))


@settings(max_examples=60, deadline=None)
@given(answer=TOKENS)
def test_the_qwen_style_template_continues_token_for_token(qwen: ModelRenderer, answer: list[int]) -> None:
    sampled = (*qwen.render([said("system", "s"), said("user", "a")], TOOLS), *answer)
    continued = qwen.extend(sampled, [said("tool", "1"), said("tool", "2")])
    assert continued[: len(sampled)] == sampled
    rest = "<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    end = encoded(rest + "<|im_end|>\n<|im_start|>assistant\n")
    assert continued[len(sampled) :] == (end[1:] if sampled[-1] == END else end)


# ------------------------------------------------------------------------------------------------ plain text


def tool_with(**changes: Any) -> list[Message]:
    return [{"type": "function", "function": {"name": "n", "description": "d", "parameters": {}, **changes}}]


def call_with(arguments: str, name: str = "n") -> Message:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


Case = Callable[[str], tuple[list[Message], list[Message]]]
PLACES: dict[str, Case] = {
    "user": lambda text: ([said("user", text)], []),
    "system": lambda text: ([said("system", text)], []),
    "tool result": lambda text: ([said("tool", text)], []),
    "assistant": lambda text: ([said("assistant", text)], []),
    "a part": lambda text: ([said("user", [{"type": "text", "text": text}])], []),
    "parts that join": lambda text: (
        [said("user", [{"type": "text", "text": text[:5]}, {"type": "text", "text": text[5:]}])],
        [],
    ),
    "tool name": lambda text: ([said("user", "a")], tool_with(name=text)),
    "tool description": lambda text: ([said("user", "a")], tool_with(description=text)),
    "tool parameter": lambda text: ([said("user", "a")], tool_with(parameters={"properties": {text: {}}})),
    "call name": lambda text: ([call_with("{}", name=text)], []),
    "call argument": lambda text: ([call_with(json.dumps({"a": [text]}))], []),
    "call argument's name": lambda text: ([call_with(json.dumps({text: 1}))], []),
    "escaped call argument": lambda text: ([call_with('{"a": "' + text.replace("<", "\\u003c") + '"}')], []),
    "arguments that are no object": lambda text: ([call_with(text)], []),
}


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("template", ["tiny", "qwen"])
def test_control_tokens_in_what_people_write_stay_text(
    qwen: ModelRenderer, template: str, place: str, control: str
) -> None:
    made = qwen if template == "qwen" else renderer
    token_ids = made.render(*PLACES[place](control))
    harmless = made.render(*PLACES[place]("harmless-text"))
    assert [i for i in token_ids if i in SPECIAL_IDS] == [i for i in harmless if i in SPECIAL_IDS]
    assert decoded(token_ids) == decoded(harmless).replace("harmless-text", control), "the text itself is unchanged"


@pytest.mark.parametrize("place", ["user", "system", "tool result", "a part", "parts that join", "tool name"])
def test_a_call_that_somebody_else_writes_is_no_call(place: str) -> None:
    token_ids = renderer.render(*PLACES[place]('<tool_call>{"name": "rm"}</tool_call>'))
    assert not {7, 8} & set(token_ids)
    assert '<tool_call>{"name": "rm"}</tool_call>' in decoded(token_ids)


def test_the_assistants_own_calls_are_calls() -> None:
    assert {7, 8} <= set(renderer.render([said("assistant", "<tool_call>x</tool_call>")], []))


@pytest.mark.parametrize("control", CONTROLS)
def test_control_tokens_in_a_continuation_and_a_completion_stay_text(control: str) -> None:
    sampled = (*renderer.render([said("user", "a")], []), END)
    for role in ("user", "tool"):
        continued = renderer.extend(sampled, [said(role, control)])[len(sampled) :]
        assert [i for i in continued if i in SPECIAL_IDS] == [1, END, 1]
    assert not SPECIAL_IDS & set(renderer.render_text(control, None))
    assert [i for i in renderer.render_text(control, control) if i in SPECIAL_IDS] == [4, 5, 6]


# ------------------------------------------------------------------------------------------------ answers


def parsed(token_ids: Sequence[int], cuts: Iterable[int], *, tools: bool) -> tuple[str, list[Any], list[OutputDelta]]:
    """Return content, calls and deltas of an answer that arrives cut at these places."""
    parser = renderer.parser(tools=TOOLS if tools else ())
    places = sorted({0, len(token_ids), *(cut % (len(token_ids) + 1) for cut in cuts)})
    deltas = [parser.feed(token_ids[start:end]) for start, end in pairwise(places)]
    deltas.append(parser.finish())
    calls = [(call.index, call.name, call.arguments) for delta in deltas for call in delta.tool_calls]
    return "".join(delta.content for delta in deltas), calls, deltas


CUTS = st.lists(st.integers(0, 200), max_size=12) | st.just(list(range(200)))
CALLS = st.tuples(st.sampled_from(["read_file", "é"]), ARGUMENTS.filter(lambda a: "</tool_call>" not in json.dumps(a)))
MALFORMED = [
    "nope",
    "[]",
    "3",
    '{"name": "a"}',
    '{"arguments": {}}',
    '{"name": 1, "arguments": {}}',
    '{"name": "a", "arguments": "{}"}',
    '{"name": "a", "arguments": []}',
    '{"name": "a", "arguments": {"b": NaN}}',
    '{"name": "a", "arguments": {"b": "\\ud800"}}',
    '{"name": "\\udc00", "arguments": {}}',
    '{"name": "a", "arguments": ' + '{"b":' * 3000,
    "<tool_call>",
    "",
]
PIECES = st.lists(
    st.tuples(
        st.just("text"), st.text("<tool_cal/ \n\té🦜a", max_size=12).filter(lambda text: "<tool_call>" not in text)
    )
    | st.tuples(st.just("call"), CALLS)
    | st.tuples(st.just("malformed"), st.sampled_from([text for text in MALFORMED if len(text) < 100])),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(
    pieces=PIECES,
    unfinished=st.sampled_from(["", "<tool_call>", '<tool_call>\n{"name": "a"', "<tool"]),
    cuts=CUTS,
    spelled=st.booleans(),
)
def test_content_and_calls_are_the_same_however_tokens_arrive(
    pieces: list[Any], unfinished: str, cuts: list[int], spelled: bool
) -> None:
    """All text is content or a call, whether its marks are one token or spelled out.

    Only white space after a call is dropped."""
    written, content, after_call = "", "", False
    calls: list[tuple[int, str, str]] = []
    for kind, piece in [*pieces, ("malformed", None)] if unfinished else pieces:
        if kind == "call":
            body = json.dumps({"name": piece[0], "arguments": piece[1]}, ensure_ascii=False)
            written += f"<tool_call>\n{body}\n</tool_call>"
            calls.append((len(calls), piece[0], json.dumps(piece[1], ensure_ascii=False)))
            after_call = True
            continue
        if kind == "malformed":
            text = unfinished if piece is None else f"<tool_call>{piece}</tool_call>"
        else:
            text = piece
        written += text
        seen = text.lstrip() if after_call else text
        content += seen
        after_call = after_call and not seen
    answer = renderer.render_text(written, None) if spelled else encoded(written)
    whole, found, deltas = parsed(answer, cuts, tools=True)
    assert (whole, found) == (content, calls)
    assert not any("\ufffd" in delta.content for delta in deltas), "no half characters"


@settings(max_examples=100, deadline=None)
@given(answer=TOKENS, cuts=CUTS, tools=st.booleans())
def test_any_tokens_are_parsed_alike_in_any_chunks(answer: list[int], cuts: list[int], tools: bool) -> None:
    assert parsed(answer, cuts, tools=tools)[:2] == parsed(answer, (), tools=tools)[:2]


@settings(max_examples=100, deadline=None)
@given(answer=TOKENS, cuts=CUTS)
def test_without_tools_the_content_is_the_tokens_bytes(answer: list[int], cuts: list[int]) -> None:
    shown = [token_id for token_id in answer if token_id not in renderer.stop_token_ids]
    expected = b"".join(map(renderer.token_bytes, shown)).decode("utf-8", "replace")
    assert parsed(answer, cuts, tools=False)[:2] == (expected, [])


@pytest.mark.parametrize("text", ["🦜", "é", "👩‍👩‍👧", "日本", "a🦜<tool_call"])
def test_a_character_of_several_tokens_comes_whole(text: str) -> None:
    token_ids = encoded(text)
    assert len(token_ids) > len(text) or "<" in text, "the tiny vocabulary splits it"
    content, _, deltas = parsed(token_ids, range(200), tools=True)
    assert content == text
    assert not any("\ufffd" in delta.content for delta in deltas)


def test_a_character_cut_off_by_the_end_is_said_to_be_none() -> None:
    assert parsed(encoded("a🦜")[:-1], range(200), tools=True)[0] == "a\ufffd"


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_a_call_that_is_none_is_content_and_later_calls_are_calls(text: str) -> None:
    """Clients must get JSON that they can read."""
    malformed = f"<tool_call>{text}</tool_call>"
    valid = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
    for cuts in ((), range(4000)):
        content, calls, deltas = parsed(encoded(f"x {malformed} {valid}"), cuts, tools=True)
        assert (content, calls) == (f"x {malformed} ", [(0, "a", "{}")])
        assert sum(delta.broken_calls for delta in deltas) == 1


def test_a_call_that_is_cut_off_is_broken() -> None:
    _, _, deltas = parsed(encoded('x <tool_call>\n{"name": "a"'), range(200), tools=True)
    assert [delta.broken_calls for delta in deltas if delta.broken_calls] == [1]


def test_text_after_a_call_keeps_its_spaces() -> None:
    valid = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
    for cuts in ((), range(200)):
        content, calls, _ = parsed(encoded(f"{valid}\n\n{valid}\nso it is  done \n"), cuts, tools=True)
        assert content == "so it is  done \n"
        assert [call[0] for call in calls] == [0, 1]


def test_text_streams_as_it_comes() -> None:
    """Text is held back while it may still become a call."""
    parser = renderer.parser(tools=TOOLS)
    assert parser.feed(encoded("def f")).content == "def f"
    assert parser.feed(encoded(" <tool")).content == " "
    assert parser.feed(encoded("s>")).content == "<tools>"


# ------------------------------------------------------------------------------------------------ tokens and text


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_the_tokens_bytes_are_the_texts(text: str) -> None:
    assert b"".join(map(renderer.token_bytes, renderer.render_text(text, None))) == text.encode()


def test_every_token_decodes_as_the_tokenizer_decodes_it() -> None:
    for token_id in range(512):
        assert renderer.token_text(token_id) == tokenizer.decode([token_id], skip_special_tokens=False)
        assert renderer.token_bytes(token_id).decode("utf-8", "replace") == renderer.token_text(token_id)
    assert renderer.token_bytes(100_000) == b""


def test_fill_in_the_middle_has_its_marks_around() -> None:
    assert renderer.render_text("def f", "return") == (4, *encoded("def f"), 5, *encoded("return"), 6)
    assert renderer.render_text("", "") == (4, 5, 6)


def test_a_model_without_such_marks_refuses_a_suffix(tmp_path: Path) -> None:
    text = (TINY / "tokenizer.json").read_text().replace("<|fim_", "<|other_")
    made = load_renderer(copy_of_tiny(tmp_path, tokenizer__json=text))
    assert made.render_text("a", None) == renderer.render_text("a", None)
    with pytest.raises(InvalidRequest, match="fill-in-the-middle") as refused:
        made.render_text("a", "b")
    assert refused.value.param == "suffix"


# ------------------------------------------------------------------------------------------------ loading


def changed(name: str, **entries: Any) -> str:
    return json.dumps(json.loads((TINY / name).read_text()) | entries)


BROKEN: dict[str, tuple[str, str | None]] = {
    "no tokenizer": ("tokenizer.json", None),
    "a tokenizer that is no JSON": ("tokenizer.json", "garbage"),
    "a tokenizer that is none": ("tokenizer.json", "{}"),
    "a tokenizer of pieces": ("tokenizer.json", changed("tokenizer.json", decoder={"type": "Fuse"})),
    "a tokenizer without decoder": ("tokenizer.json", changed("tokenizer.json", decoder=None)),
    "a tokenizer with characters that are no bytes": (
        "tokenizer.json",
        (TINY / "tokenizer.json").read_text().replace('"vocab": {', '"vocab": {"▁": 512,', 1),
    ),
    "no configuration": ("tokenizer_config.json", None),
    "a configuration that is no JSON": ("tokenizer_config.json", "{"),
    "no chat template": ("chat_template.jinja", None),
    "a template with a fault": ("chat_template.jinja", "{% for message in %}"),
    "a template that never shows answers": ("chat_template.jinja", "{{ messages[0].content }}"),
    "a template that ends with the answer": ("chat_template.jinja", "{{ messages[1].content }}"),
    "a template that changes answers": ("chat_template.jinja", "{{ messages[1].content | urlencode }} "),
    "a template that fails": ("chat_template.jinja", "{{ messages[1].content + 1 }} "),
    "a generation configuration that is no JSON": ("generation_config.json", "?"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_loaded_is_named(tmp_path: Path, case: str) -> None:
    name, text = BROKEN[case]
    copy_of_tiny(tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        load_renderer(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert name in str(error.value) or "chat template" in str(error.value)


def test_the_template_may_stand_in_the_configuration(tmp_path: Path) -> None:
    template = (TINY / "chat_template.jinja").read_text()
    forms = [template, [{"name": "rag", "template": "{{ x }}"}, {"name": "default", "template": template}]]
    for number, form in enumerate(forms):
        directory = tmp_path / str(number)
        directory.mkdir()
        text = changed("tokenizer_config.json", chat_template=form, eos_token={"content": "<|im_end|>"})
        copy_of_tiny(directory, tokenizer_config__json=text)
        (directory / "chat_template.jinja").unlink()
        made = load_renderer(directory)
        assert made.render([said("user", "a")], TOOLS) == renderer.render([said("user", "a")], TOOLS)
        assert made.tokenizer_digest == renderer.tokenizer_digest


def test_whatever_a_file_names_as_an_end_is_one(tmp_path: Path) -> None:
    assert renderer.stop_token_ids == (2, 0)
    copy_of_tiny(tmp_path, generation_config__json="{}", config__json='{"eos_token_id": 0}')
    assert load_renderer(tmp_path).stop_token_ids == (0, 2)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 0]}')
    assert load_renderer(tmp_path).stop_token_ids == (5, 0, 2)
    (tmp_path / "tokenizer_config.json").write_text(changed("tokenizer_config.json", eos_token="<|pad|>"))
    assert load_renderer(tmp_path).unnamed_end == "<|im_end|>"
    assert "<|im_end|>, which the template puts behind them" in str(report_family(tmp_path))
    for path in ("config.json", "generation_config.json"):
        (tmp_path / path).unlink()
    (tmp_path / "tokenizer_config.json").write_text(changed("tokenizer_config.json", eos_token=None))
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        load_renderer(tmp_path)


def test_another_tokenizer_or_template_has_another_digest(qwen: ModelRenderer, tmp_path: Path) -> None:
    text = (TINY / "tokenizer.json").read_text().replace("<|pad|>", "<|pads|>")
    other = load_renderer(copy_of_tiny(tmp_path, tokenizer__json=text))
    assert len({renderer.tokenizer_digest, qwen.tokenizer_digest, other.tokenizer_digest}) == 3
    assert renderer.tokenizer_digest == load_renderer(TINY).tokenizer_digest
