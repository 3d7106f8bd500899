"""Answers are read as transformers' response parser reads them, by the templates that trl has for it."""

import json
from pathlib import Path
from typing import Any

import pytest
from family_files import KIN, write_files
from transformers.utils.chat_parsing import parse_response

from serving.rendering import load_renderer

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "does it",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "all": {"type": "boolean"}},
            },
        },
    }
    for name in ("read_file", "edit_file")
]
CALLS = [("read_file", {"path": "7"}), ("edit_file", {"path": "a.py\nb", "line": 3, "all": True})]
TEMPLATES = {
    "Qwen 2.5": "qwen3_template",
    "Qwen 3": "qwen3_template",
    "Qwen 3.5": "qwen3_5_template",
    "GLM 4.5": "glm4moe_template",
    "Llama 3.1": "llama3_template",
    "gpt-oss": "gptoss_template",
    "Gemma 4": "gemma4_template",
}
ONE_CALL = ("Llama 3.1", "gpt-oss")
OPENED = ("Qwen 3.5",)  # their prompts begin the thinking
THINKING = {"Gemma 4": "<|channel>thought\n{}\n<channel|>", "gpt-oss": "<|channel|>analysis<|message|>{}<|end|>"}
TEXT = {"gpt-oss": "<|start|>assistant<|channel|>final<|message|>{}<|return|>"}


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("name", TEMPLATES)
def test_both_read_the_same(tmp_path: Path, name: str, count: int, thinks: bool) -> None:
    """The calls are written by the model's own chat template."""
    from trl import chat_template_utils  # which takes long, also for those who only look which tests there are

    if (count > 1 and name in ONE_CALL) or (thinks and name in ("Qwen 2.5", "Llama 3.1")):
        return  # which it does not write
    made = load_renderer(write_files(tmp_path, KIN[name]))
    user = {"role": "user", "content": "fix f"}
    prompt = made.render([user], TOOLS)
    before = b"".join(map(made.token_bytes, prompt)).decode()
    text = TEXT.get(name, "It is 7.").format("It is 7.")
    thought = THINKING.get(name, "<think>\n{}\n</think>\n\n").format("I look.") if thinks else ""
    answer = written(made, user, count, thinks=thinks) if count else thought + text
    if not count and name in OPENED:
        answer = answer.removeprefix("<think>\n") if thinks else f"\n</think>\n\n{answer}"
    expected = parse_response(answer, getattr(chat_template_utils, TEMPLATES[name]), prefix=before, tools=TOOLS)

    parser = made.parser(tools=TOOLS, after=prompt)
    deltas = [parser.feed(made._vocabulary.encode(answer, inner=True)), parser.finish()]
    calls = [(call.name, json.loads(call.arguments)) for delta in deltas for call in delta.tool_calls]
    content, reasoning = ("".join(getattr(delta, part) for delta in deltas) for part in ("content", "reasoning"))
    told = [(call["function"]["name"], call["function"]["arguments"]) for call in expected.get("tool_calls") or []]
    assert calls == told
    assert len(calls) == count
    assert content.strip() == (expected.get("content") or "").strip()
    assert reasoning == (expected.get("reasoning_content") or expected.get("thinking") or "").strip()
    assert reasoning == ("I look." if thinks else "")


def written(made: Any, user: dict[str, Any], count: int, *, thinks: bool) -> str:
    """Return what the template writes of calls, up to the end of the answer."""
    calls = [
        {"id": str(at), "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(CALLS[-count:])
    ]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    chat = [user, {**said, "reasoning_content": "I look."} if thinks else said]
    whole = b"".join(map(made.token_bytes, made._template.encode(made._template.text(chat, TOOLS, prompt=False))))
    before = b"".join(map(made.token_bytes, made.render([user], TOOLS)))
    shared = next((at for at, (a, b) in enumerate(zip(whole, before, strict=False)) if a != b), len(before))
    answer: str = whole[shared:].decode()
    return answer.removesuffix("\n")
