"""Chats with models that think, and with models that cannot be shown tools."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from api_harness import MODEL, Service, serve
from family_files import KIN, write_files
from scripted_policy import Script

from serving.rendering import ModelRenderer, load_renderer

TOOLS: Any = [{"type": "function", "function": {"name": "edit_file", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "edit_file", "arguments": {"line": 3}}\n</tool_call>'
ANSWER = f"<think>\nhm\n</think>\n\nI do.{CALL}"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ModelRenderer:
    return load_renderer(write_files(tmp_path_factory.mktemp("qwen"), KIN["Qwen 3"]))


@pytest.fixture(scope="module")
def service(qwen: ModelRenderer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("api") / "service", renderer=qwen) as running:
        running.policy.context_length = 100_000
        yield running


def said(renderer: ModelRenderer, text: str) -> Script:
    return Script((*renderer._vocabulary.encode(text), renderer.stop_token_ids[0]))


def test_thinking_is_apart_from_content(service: Service, qwen: ModelRenderer) -> None:
    service.policy.scripts += [said(qwen, ANSWER)]
    user: Any = {"role": "user", "content": "fix f"}
    answer = service.client().chat.completions.create(model=MODEL, messages=[user], tools=TOOLS)
    message: Any = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("hm", "I do.")
    assert [call.function.name for call in message.tool_calls] == ["edit_file"]
    assert answer.choices[0].finish_reason == "tool_calls"
    turn = service.turn(answer.model_extra["onward"]["inference_id"])  # type: ignore[index]
    assert turn.text == "I do."
    assert [segment.kind for segment in turn.segments] == ["thinking", "answer", "tool"]
    assert turn.segments[-1].end == len(turn.token_ids)


def test_it_streams_apart_too(service: Service, qwen: ModelRenderer) -> None:
    service.policy.scripts += [said(qwen, ANSWER)]
    user: Any = {"role": "user", "content": "fix g"}
    deltas: list[Any] = [
        chunk.choices[0].delta
        for chunk in service.client().chat.completions.create(model=MODEL, messages=[user], tools=TOOLS, stream=True)
    ]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"
    assert "".join(delta.content or "" for delta in deltas) == "I do."
    assert [call.function.name for delta in deltas for call in delta.tool_calls or ()] == ["edit_file"]


@pytest.mark.parametrize("sent_back", [{}, {"reasoning_content": "hm"}, {"reasoning": "hm"}], ids=str)
def test_a_session_goes_on_with_thinking_or_without(
    service: Service, qwen: ModelRenderer, sent_back: dict[str, str]
) -> None:
    """The next prompt holds the sampled tokens, thinking included, which the template itself would drop."""
    question = f"why {sent_back}?"
    service.policy.scripts += [said(qwen, "<think>\nhm\n</think>\n\nso"), said(qwen, "yes")]
    first = service.turn(service.chat(question).headers["x-onward-inference-id"])
    answer = service.chat(question, {"role": "assistant", "content": "so", **sent_back}, "sure?")
    second = service.turn(answer.headers["x-onward-inference-id"])
    assert second.parent_id == first.inference_id
    history = first.prompt_token_ids + first.token_ids
    assert second.prompt_token_ids[: len(history)] == history


def test_thinking_of_another_transcript_is_rendered_as_the_template_does(service: Service, qwen: ModelRenderer) -> None:
    service.policy.scripts += [said(qwen, "yes")]
    told = {"role": "assistant", "content": "so", "reasoning_content": "of old"}
    turn = service.turn(service.chat("never asked", told, "sure?").headers["x-onward-inference-id"])
    assert turn.parent_id is None
    assert "of old" not in b"".join(map(qwen.token_bytes, turn.prompt_token_ids)).decode()


def test_tools_that_the_template_drops_are_refused(tmp_path: Path) -> None:
    renderer = load_renderer(write_files(tmp_path / "model", KIN["SmolLM2"]))
    with serve(tmp_path / "service", renderer=renderer) as running:
        user: Any = {"role": "user", "content": "fix f"}
        with pytest.raises(openai.BadRequestError) as refused:
            running.client().chat.completions.create(model=MODEL, messages=[user], tools=TOOLS)
    error: Any = refused.value.body
    assert (error["param"], error["code"]) == ("tools", "unsupported")
    assert error["message"].endswith("cannot be shown tools: its chat template shows no tools")
    assert running.services.model_name in error["message"]
