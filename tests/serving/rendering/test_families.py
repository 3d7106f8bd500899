"""The families that models are found in, and what is rendered for each, compared with transformers."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from family_files import KIN, Kin, tokenizer_of, write_files
from transformers import AutoTokenizer

from core.errors import InvalidRequest
from serving.rendering import ModelRenderer, load_renderer, report_family

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"to {name}",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}},
        },
    }
    for name in ("read_file", "edit_file")
]
Message = dict[str, Any]
USER: Message = {"role": "user", "content": "größe?\n\nfix <f>"}
CALL_ID = "000000000"
NEXT: Message = {"role": "user", "content": "and?"}
SHOW_TOOLS = [name for name in KIN if KIN[name].family != "plain" and name != "DeepSeek V3"]


def calling(*calls: tuple[str, dict[str, Any]], as_text: bool) -> Message:
    made = [
        {
            "id": f"{index:09}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments) if as_text else arguments},
        }
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {name: write_files(root / str(at), kin) for at, (name, kin) in enumerate(KIN.items())}


@pytest.fixture(scope="module")
def renderers(directories: dict[str, Path]) -> dict[str, ModelRenderer]:
    return {name: load_renderer(directory) for name, directory in directories.items()}


@pytest.fixture(scope="module")
def references(directories: dict[str, Path]) -> dict[str, Any]:
    return {name: AutoTokenizer.from_pretrained(directory) for name, directory in directories.items()}


def text_of(renderer: ModelRenderer, ids: tuple[int, ...]) -> str:
    return b"".join(map(renderer.token_bytes, ids)).decode()


@pytest.mark.parametrize("name", KIN)
def test_a_model_is_found_in_its_family(renderers: dict[str, ModelRenderer], name: str) -> None:
    assert renderers[name].family.name == KIN[name].family


@pytest.mark.parametrize("name", KIN)
def test_a_chat_becomes_the_tokens_that_transformers_makes_of_it(
    renderers: dict[str, ModelRenderer], references: dict[str, Any], name: str
) -> None:
    made, reference = renderers[name], references[name]
    text = made.family.takes_text_arguments
    chats: list[list[Message]] = [[USER], [USER, {"role": "assistant", "content": "so <b> \n\n it is"}, NEXT]]
    if made.tools_refused is None:
        result = {"role": "tool", "content": "x = 1", "tool_call_id": CALL_ID}
        chats.append([USER, calling(("read_file", {"path": "ä.py", "line": 3}), as_text=text), result])
    for chat in chats:
        for tools in ([], TOOLS) if made.tools_refused is None else ([],):
            expected = reference.apply_chat_template(
                chat, tools=tools or None, tokenize=False, add_generation_prompt=True
            )
            got = made.render(chat, tools)
            if made.family.has_short_ids:
                expected = expected.replace(CALL_ID, hashlib.blake2b(CALL_ID.encode()).hexdigest()[:9])
            assert got == tuple(reference.encode(expected, add_special_tokens=False))
            if KIN[name].kind != "pieces after a space":
                assert text_of(made, got) == expected


AFTER: dict[str, tuple[str, str, str]] = {
    # Where the answer ended by itself, a user's next words; then what ends an answer that calls; then a tool's result.
    "Qwen 2.5": (
        "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>",
        "\n<|im_start|>user\n<tool_response>\nx = 1\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
    "Qwen 3": (
        "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>",
        "\n<|im_start|>user\n<tool_response>\nx = 1\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
    "Qwen 3.5": (
        "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "<|im_end|>",
        "\n<|im_start|>user\n<tool_response>\nx = 1\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
    "Llama 3.1": (
        "<|start_header_id|>user<|end_header_id|>\n\nand?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
        '<|start_header_id|>ipython<|end_header_id|>\n\n"x = 1"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Mistral": ("[INST] and?[/INST]", "</s>", '[TOOL_RESULTS] {"content": "x = 1"}[/TOOL_RESULTS]'),
    "DeepSeek V3.1": (
        "<｜User｜>and?<｜Assistant｜><think>",
        "<｜end▁of▁sentence｜>",
        "<｜tool▁output▁begin｜>x = 1<｜tool▁output▁end｜>",
    ),
    "gpt-oss": (
        "<|start|>user<|message|>and?<|end|><|start|>assistant",
        "<|call|>",
        '<|start|>functions.read_file to=assistant<|channel|>commentary<|message|>"x = 1"<|end|><|start|>assistant',
    ),
    "GLM 4.5": ("\nand?<|assistant|>", "<|observation|>", "\n<tool_response>\nx = 1\n</tool_response><|assistant|>"),
    "Gemma 4": (
        "\n<|turn>user\nand?<turn|>\n<|turn>model\n",
        "<|tool_response>",
        'response:read_file{value:<|"|>x = 1<|"|>}<tool_response|>',
    ),
}
ENDS = {"gpt-oss": "<|end|>"}  # what an answer that was cut off is ended with, where it is no stop token


@pytest.mark.parametrize("name", AFTER)
def test_a_turn_continues_the_very_tokens_of_the_one_before(renderers: dict[str, ModelRenderer], name: str) -> None:
    made, (user, _, _) = renderers[name], AFTER[name]
    answer = made._vocabulary.encode("so it is", inner=True)
    cut_off = (*made.render([USER], TOOLS), *answer)
    ended = (*cut_off, made.stop_token_ids[0])
    continued = made.extend(ended, [NEXT])
    assert continued[: len(ended)] == ended
    assert text_of(made, continued[len(ended) :]) == user
    closed = made.extend(cut_off, [NEXT])
    assert closed[: len(cut_off)] == cut_off
    end = ENDS.get(name) or text_of(made, (made.stop_token_ids[0],))
    assert text_of(made, closed[len(cut_off) :]) == end + user


@pytest.mark.parametrize("name", AFTER)
def test_a_tools_result_follows_the_call_as_sampled(renderers: dict[str, ModelRenderer], name: str) -> None:
    made, (_, end, result) = renderers[name], AFTER[name]
    calls = calling(("read_file", {"path": "a.py"}), as_text=True)["tool_calls"]
    sampled = (*made.render([USER], TOOLS), *made._vocabulary.encode(f"a call{end}", inner=True))
    said = {"role": "tool", "content": "x = 1", "tool_call_id": CALL_ID}
    continued = made.extend(sampled, [said], calls)
    assert continued[: len(sampled)] == sampled
    assert text_of(made, continued[len(sampled) :]) == result


@pytest.mark.parametrize("name", SHOW_TOOLS)
def test_what_a_template_writes_of_calls_is_read_as_these_calls(
    renderers: dict[str, ModelRenderer], references: dict[str, Any], name: str
) -> None:
    """The template shows the model how to call."""
    made, reference = renderers[name], references[name]
    calls = [("read_file", {"path": "a.py"}), ("edit_file", {"path": "7", "line": 3})]
    if KIN[name].template in ("llama3_1", "llama3_2", "gptoss"):
        calls = calls[1:]  # these take one only
    chat = [USER, calling(*calls, as_text=made.family.takes_text_arguments)]
    whole = reference.apply_chat_template(chat, tools=TOOLS, tokenize=False)
    before = reference.apply_chat_template([USER], tools=TOOLS, tokenize=False, add_generation_prompt=True)
    shared = next(at for at in range(len(whole) + 1) if at == len(before) or whole[at] != before[at])
    parser = made.parser(tools=TOOLS)
    answer = made._vocabulary.encode(whole[shared:], inner=True)
    deltas = [*(parser.feed((token,)) for token in answer), parser.finish()]
    found = [(call.name, json.loads(call.arguments)) for delta in deltas for call in delta.tool_calls]
    assert found == calls
    assert sum(delta.broken_calls for delta in deltas) == 0


@pytest.mark.parametrize("name", ["SmolLM2", "Gemma 3", "DeepSeek V3"])
def test_a_template_that_drops_tools_says_so(renderers: dict[str, ModelRenderer], name: str) -> None:
    made = renderers[name]
    assert made.tools_refused == "its chat template shows no tools"
    assert "read_file" not in text_of(made, made.render([USER], TOOLS))


LATE_SYSTEM = {
    "Qwen 3.5": "System message must be at the beginning",
    "Mistral": "drops it",
    "Mistral of pieces": "drops it",
    "DeepSeek V3": "puts it elsewhere",
    "DeepSeek V3.1": "drops it",
    "gpt-oss": "drops it",
    "Gemma 2": "must alternate",
    "Gemma 3": "must alternate",
}
"""Why a model's template shows no system message behind others, where it does not."""


@pytest.mark.parametrize("name", KIN)
def test_a_late_system_message_stands_in_its_place_or_is_refused(
    renderers: dict[str, ModelRenderer], name: str
) -> None:
    made = renderers[name]
    if name in LATE_SYSTEM:
        assert LATE_SYSTEM[name] in (made.late_system_refused or "")
        return
    assert made.late_system_refused is None
    answer, late = {"role": "assistant", "content": "so"}, {"role": "system", "content": "be brief"}
    whole = text_of(made, made.render([USER, answer, late, NEXT], ()))
    assert whole.index("so") < whole.index("be brief") < whole.rindex(str(NEXT["content"]))
    assert whole.endswith(text_of(made, made.extend((), [late, NEXT])))


def test_a_template_that_refuses_tools_says_why(tmp_path: Path) -> None:
    refusing = "{% if tools %}{{ raise_exception('no tools, please') }}{% endif %}" + KIN["SmolLM2"].source
    write_files(tmp_path, KIN["SmolLM2"])
    (tmp_path / "chat_template.jinja").write_text(refusing)
    made = load_renderer(tmp_path)
    assert made.tools_refused is not None
    assert "no tools, please" in made.tools_refused
    with pytest.raises(InvalidRequest, match="no tools, please"):
        made.render([USER], TOOLS)


def test_reports_say_what_an_operator_must_know(directories: dict[str, Path], tmp_path: Path) -> None:
    expected = {
        "Qwen 3": "family qwen: thinking apart, tools",
        "Llama 3.1": "family llama: no thinking, tools",
        "gpt-oss": "family gpt_oss: thinking apart, tools",
        "SmolLM2": "family plain: no thinking, requests with tools are refused: its chat template shows no tools",
    }
    assert {name: str(report_family(directories[name])) for name in expected} == expected
    write_files(tmp_path, KIN["Qwen 2.5"])
    (tmp_path / "chat_template.jinja").write_text("{{ tools | tojson }}" + KIN["SmolLM2"].source)
    report = report_family(tmp_path)
    assert not report.is_known
    assert str(report) == (
        "family unknown: no thinking, tools are shown, but no form of calls is known: calls come as text "
        "(set serving.family)"
    )
    assert report_family(tmp_path, "qwen").is_known


def test_control_tokens_in_what_people_write_stay_text(renderers: dict[str, ModelRenderer]) -> None:
    for name, kin in KIN.items():
        made = renderers[name]
        tokenizer = tokenizer_of(kin.kind, kin.special, kin.written)
        marks = [mark for mark in (*kin.special, *kin.written) if mark.strip()]
        for mark in marks:
            ids = made.render([{"role": "user", "content": f"a{mark}b"}], ())
            plain = made.render([{"role": "user", "content": "a-b"}], ())
            token = tokenizer.token_to_id(mark)
            assert ids.count(token) == plain.count(token), f"{name}: {mark}"
            assert f"a{mark}b" in text_of(made, ids), f"{name}: {mark}"


def test_line_breaks_that_are_tokens_stay_tokens(renderers: dict[str, ModelRenderer]) -> None:
    """Gemma has tokens of white space, which are no control tokens."""
    made, kin = renderers["Gemma 2"], KIN["Gemma 2"]
    breaks = tokenizer_of(kin.kind, kin.special, kin.written).token_to_id("\n\n")
    assert breaks in made.render([{"role": "user", "content": "a\n\nb"}], ())


def test_each_family_of_the_table_is_described(renderers: dict[str, ModelRenderer]) -> None:
    from serving.rendering.families import names

    page = (Path(__file__).resolve().parents[3] / "docs" / "families.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in page for name in names())
    assert {kin.family for kin in KIN.values()} == set(names())
    assert all(isinstance(kin, Kin) for kin in KIN.values())
