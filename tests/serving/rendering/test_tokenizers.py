"""Any text and any tokens, with tokenizers of bytes and of pieces."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from family_files import KIN, tokenizer_of, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from serving.rendering import ModelRenderer, load_renderer

MODELS = {"bytes": "SmolLM2", "pieces": "Gemma 2", "pieces after a space": "Mistral of pieces"}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("é🦜日 \n▁<>"), max_size=24)
TOKENS = st.lists(st.integers(0, 350), max_size=40)
CUTS = st.lists(st.integers(0, 60), max_size=8) | st.just(list(range(400)))


@pytest.fixture(scope="module", params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def directory(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("model"), KIN[MODELS[kind]])


@pytest.fixture(scope="module")
def renderer(directory: Path) -> ModelRenderer:
    return load_renderer(directory)


def parts_of(renderer: ModelRenderer, ids: list[int], cuts: Iterable[int]) -> list[str]:
    parser = renderer.parser()
    places = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    return [*(parser.feed(ids[a:b]).content for a, b in pairwise(places)), parser.finish().content]


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, cuts=CUTS)
def test_a_text_comes_back_whole_in_any_parts(renderer: ModelRenderer, kind: str, text: str, cuts: list[int]) -> None:
    """No part has half a character."""
    text = text.replace("▁", "_") if kind != "bytes" else text  # which pieces take for a space
    parts = parts_of(renderer, list(renderer.render_text(text, None)), cuts)
    assert "".join(parts) == text
    assert "\ufffd" in text or not any("\ufffd" in part for part in parts)


@settings(max_examples=150, deadline=None)
@given(ids=TOKENS, cuts=CUTS)
def test_any_tokens_come_alike_in_any_parts(renderer: ModelRenderer, ids: list[int], cuts: list[int]) -> None:
    """Bytes that are no character are said to be none, once it is certain."""
    whole = "".join(parts_of(renderer, ids, ()))
    assert "".join(parts_of(renderer, ids, cuts)) == whole
    shown = b"".join(renderer.token_bytes(token) for token in ids if token not in renderer.stop_token_ids)
    first = renderer._vocabulary.drops_first_space and shown.startswith(b" ")
    assert whole == shown[first:].decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["🦜", "日", "é"])
def test_half_a_character_waits_for_its_other_half(renderer: ModelRenderer, text: str) -> None:
    unseen = {"🦜": "🦚", "日": "月", "é": "ø"}[text]  # which the tokenizer was not trained on
    ids = renderer.render_text(unseen, None)
    parser = renderer.parser()
    parts = [parser.feed((token,)).content for token in ids]
    assert len(parts) > 1
    assert parts == [*[""] * (len(parts) - 1), unseen]


def test_a_character_cut_off_by_the_end_is_said_to_be_none(renderer: ModelRenderer) -> None:
    ids = renderer.render_text("🦚", None)
    parser = renderer.parser()
    assert parser.feed(ids[:-1]).content == ""
    assert parser.finish().content == "\ufffd"


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_tokens_decode_as_transformers_decodes_them(directory: Path, renderer: ModelRenderer, text: str) -> None:
    reference = AutoTokenizer.from_pretrained(directory)
    ids = list(renderer.render_text(text, None))
    assert "".join(parts_of(renderer, ids, ())) == reference.decode(ids, skip_special_tokens=False)


@settings(max_examples=100, deadline=None)
@given(before=TEXTS, after=TEXTS, at=st.integers(0, 2))
def test_a_control_token_within_a_text_is_text_and_changes_nothing_around(
    renderer: ModelRenderer, kind: str, before: str, after: str, at: int
) -> None:
    kin = KIN[MODELS[kind]]
    mark = kin.special[at]
    if kind != "bytes":
        before, after = before.replace("▁", "_"), after.replace("▁", "_")
    ids = renderer.render_text(before + mark + after, None)
    assert tokenizer_of(kin.kind, kin.special, kin.written).token_to_id(mark) not in ids
    assert "".join(parts_of(renderer, list(ids), ())) == before + mark + after
