"""The protocols with the shipped model's own renderer: answers, and prompts that continue token for token."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_harness import MODEL, Service, serve
from scripted_policy import Script

from core.ports import Renderer
from serving.rendering import load_renderer

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
TOOLS = [{"type": "function", "function": {"name": "edit_file", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return load_renderer(TINY)


@pytest.fixture(scope="module")
def tiny_service(renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("api") / "service", renderer=renderer) as service:
        service.policy.context_length = 100_000
        yield service


def said(renderer: Renderer, text: str) -> Script:
    return Script((*renderer.render_text(text, None), renderer.stop_token_ids[0]))


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_session(tiny_service: Service, renderer: Renderer, stream: bool) -> None:
    call = '<tool_call>\n{"name": "edit_file", "arguments": {"line": 3, "text": "return 1"}}\n</tool_call>'
    tiny_service.policy.scripts += [said(renderer, call), said(renderer, "def f() -> int: return 1")]
    client = tiny_service.client()
    first = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "fix f"}], tools=TOOLS)  # type: ignore[arg-type]
    message = first.choices[0].message
    assert message.tool_calls is not None
    made = message.tool_calls[0]
    assert made.type == "function"
    assert json.loads(made.function.arguments) == {"line": 3, "text": "return 1"}
    result = {"role": "tool", "tool_call_id": made.id, "content": "done"}
    second = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "fix f"}, message, result],  # type: ignore[list-item, misc]
        tools=TOOLS,  # type: ignore[arg-type]
        stream=stream,
    )
    answer = second.parse()
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)  # type: ignore[union-attr]
    else:
        text = answer.choices[0].message.content  # type: ignore[union-attr]
    assert text == "def f() -> int: return 1"

    before = tiny_service.turn(first.model_extra["onward"]["inference_id"])  # type: ignore[index]
    after = tiny_service.turn(second.headers["x-onward-inference-id"])
    assert after.parent_id == before.inference_id
    history = before.prompt_token_ids + before.token_ids
    assert after.prompt_token_ids[: len(history)] == history
    assert [(s.start, s.end, s.kind) for s in before.segments] == [(0, len(before.token_ids), "tool")]


def test_a_history_that_the_client_edited(tiny_service: Service, renderer: Renderer) -> None:
    tiny_service.policy.scripts += [said(renderer, "one"), said(renderer, "two")]
    first = tiny_service.chat("a")
    edited = {"role": "assistant", "content": "two, edited"}
    known = {"role": "assistant", "content": "one"}
    answer = tiny_service.chat("a", known, "b", edited, "c")
    turn = tiny_service.turn(answer.headers["x-onward-inference-id"])
    assert turn.parent_id == first.headers["x-onward-inference-id"]
    assert "two, edited" in b"".join(map(renderer.token_bytes, turn.prompt_token_ids)).decode()
