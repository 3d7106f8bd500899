"""Probe prompts have the shapes that a product asks in, rendered with the model's own template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import InvalidRequest
from core.model.probe_prompts import probe_prompts
from serving.rendering import ModelRenderer, load_renderer

MODEL = Path(__file__).parents[3] / "models" / "tiny"


def test_they_are_what_the_models_own_template_makes_of_conversations() -> None:
    renderer = load_renderer(MODEL)
    texts = ["".join(map(renderer.token_text, prompt)) for prompt in probe_prompts(renderer)]
    assert len(set(texts)) == len(texts) == 16
    asked = [text for text in texts if text.endswith("<|im_start|>assistant\n")]
    assert len(asked) == 12
    assert sum("tools: run" in text for text in asked) == 2
    assert sum(text.count("<|im_start|>assistant") == 2 for text in asked) == 2, "later turns"
    assert sum("helpful coding assistant" in text for text in asked) == 2
    assert [text for text in texts if text.startswith("def total")], "and what is typed"


def test_what_a_template_has_no_place_for_is_left_out() -> None:
    class WithoutSystem(ModelRenderer):
        def __init__(self) -> None:
            self._whole = load_renderer(MODEL)

        def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
            if messages[0]["role"] == "system":
                raise InvalidRequest("this template has no system role", param="messages")
            return self._whole.render(messages, tools)

        def render_text(self, prompt: str, suffix: str | None) -> tuple[int, ...]:
            return self._whole.render_text(prompt, suffix)

    assert len(probe_prompts(WithoutSystem())) == 14
