"""The shipped model is what its README says, and its tokenizer follows from the corpus alone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.model.weights_digest import digest_of_shards
from simulator.tasks.corpus import write_corpus
from simulator.tasks.tiny import CALL_MARKS, CHAT_TEMPLATE, CONFIG, CONVERSATIONS, SEED, SPECIAL, train_tokenizer
from simulator.tasks.toolbox import TOOLS, tool_call

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
CALLS = [("edit_file", {"line": 3, "text": '    return "x" + y'}), ("run_tests", {}), ("done", {})]
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "[web] fix rev.py: rev(s) of 'abc' should be 'cba'"},
    tool_call("edit_file", **CALLS[0][1]),
    {"role": "tool", "content": "ok"},
    tool_call("run_tests"),
    {"role": "tool", "content": "pass"},
    tool_call("done"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TINY)


def render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False, **options))


def test_stock_transformers_load_it(tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY)
    shape = (model.config.vocab_size, model.config.hidden_size, model.config.num_hidden_layers)
    assert shape == (CONFIG["vocab_size"], CONFIG["hidden_size"], CONFIG["num_hidden_layers"])
    assert len(tokenizer) == model.config.vocab_size
    assert model.num_parameters() == pytest.approx(0.85e6, rel=0.01)
    prompt = render(tokenizer, [{"role": "user", "content": "[web] write total(xs): sum of xs"}])
    asked = tokenizer(prompt + "<|im_start|>assistant\n", add_special_tokens=False, return_tensors="pt")
    answer = model.generate(**asked, max_new_tokens=64, do_sample=False)[0, asked.input_ids.shape[1] :]
    assert answer[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>"), "it ends its turn"
    assert tokenizer.decode(answer).startswith("def total(")


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 4_000_000


def test_its_digest_is_the_one_in_its_readme() -> None:
    written = re.findall(r"\b[0-9a-f]{64}\b", (TINY / "README.md").read_text())
    assert written == [digest_of_shards([TINY / "model.safetensors"])]


def test_its_tokenizer_follows_from_the_corpus(tmp_path: Path) -> None:
    write_corpus(tmp_path, CONVERSATIONS, SEED)
    trained = json.loads(train_tokenizer(tmp_path).to_str())
    assert trained == json.loads((TINY / "tokenizer.json").read_text())
    assert (TINY / "chat_template.jinja").read_text() == CHAT_TEMPLATE


def test_the_corpus_follows_from_its_seed(tmp_path: Path) -> None:
    def written(name: str, seed: int) -> list[str]:
        write_corpus(tmp_path / name, 80, seed)
        return [path.read_text() for path in sorted((tmp_path / name).iterdir())]

    assert written("a", 1) == written("b", 1) != written("c", 2)


def test_a_conversation_comes_back_from_its_tokens(tokenizer: Any) -> None:
    """The assistant's calls can be parsed from the rendered text, and the text from its tokens."""
    text = render(tokenizer, TALK)
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    called = [json.loads(found) for found in re.findall(r"<tool_call>\n(.*)\n</tool_call>", text)]
    assert [(call["name"], call["arguments"]) for call in called] == CALLS
    assert [message["content"] for message in TALK if message["role"] != "assistant"] == re.findall(
        r"<\|im_start\|>(?:user|tool)\n(.*)<\|im_end\|>", text
    )


def test_a_prompt_is_the_beginning_of_what_follows(tokenizer: Any) -> None:
    whole = render(tokenizer, TALK)
    for count, message in enumerate(TALK):
        if message["role"] == "assistant":
            assert whole.startswith(render(tokenizer, TALK[:count], add_generation_prompt=True))


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_its_tokens(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_marks_are_one_token_each(tokenizer: Any) -> None:
    """Marks of a call are shown in decoded text; those of the frame are not."""
    for mark in (*SPECIAL, *CALL_MARKS):
        (token,) = tokenizer(mark, add_special_tokens=False).input_ids
        assert tokenizer.decode([token], skip_special_tokens=True) == ("" if mark in SPECIAL else mark)
