"""Filling a gap: given in two parts, or as one prompt that its client wrote with the model's own marks."""

from pathlib import Path

import pytest

from serving.rendering.renderer import ModelRenderer, load_renderer

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")


def renderer_with(directory: Path, marks: tuple[str, ...]) -> ModelRenderer:
    """Return the renderer of the tiny model with these marks instead of its own."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        text = (TINY / name).read_text()
        for own, other in zip(QWEN, marks, strict=True):
            text = text.replace(own, other)
        (directory / name).write_text(text)
    (directory / "generation_config.json").write_bytes((TINY / "generation_config.json").read_bytes())
    return load_renderer(directory)


@pytest.mark.parametrize("marks", [QWEN, STARCODER, DEEPSEEK], ids=["qwen", "starcoder", "deepseek"])
def test_a_prompt_that_its_client_wrote_with_the_marks_is_the_gap_that_it_means(
    tmp_path: Path, marks: tuple[str, str, str]
) -> None:
    renderer = renderer_with(tmp_path, marks)
    begin, then, fill = marks
    given = renderer.render_text("def f(", "return x")
    assert renderer.render_text(f"{begin}def f({then}return x{fill}", None) == given
    assert [renderer.token_text(token) for token in (given[0], given[-1])] == [begin, fill]


@pytest.mark.parametrize("prompt", ["{0}a", "{0}a{2}", "a{0}b{1}c{2}", "{0}a{1}b{1}c{2}", "{0}a{1}b", "{2}"])
def test_marks_that_make_no_gap_are_text(tmp_path: Path, prompt: str) -> None:
    renderer = renderer_with(tmp_path, QWEN)
    tokens = renderer.render_text(prompt.format(*QWEN), None)
    assert "".join(map(renderer.token_text, tokens)) == prompt.format(*QWEN)
    assert not set(tokens) & {renderer.render_text("", "")[place] for place in (0, 1, 2)}


def test_marks_in_the_parts_themselves_are_text(tmp_path: Path) -> None:
    renderer = renderer_with(tmp_path, QWEN)
    tokens = renderer.render_text(f"a{QWEN[2]}", "b")
    begin, then, fill = renderer.render_text("", "")
    assert [tokens.count(mark) for mark in (begin, then, fill)] == [1, 1, 1]
