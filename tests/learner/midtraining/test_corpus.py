"""A corpus as tokens: the weight of each, and errors that name the line."""

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from corpora import read_corpus
from hypothesis import given
from hypothesis import strategies as st
from logged_world import MODEL
from transformers import AutoTokenizer

from core.errors import ConfigError
from learner.midtraining.corpus import CONTEXT_WEIGHT, encode, windows
from learner.sequences.packing import Example
from simulator.tasks.corpus import write_corpus
from simulator.tasks.toolbox import TOOLS, tool_call

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "[web] fix rev.py: rev(s) of 'abc' should be 'cba'"},
    tool_call("read_file", path="rev.py"),
    {"role": "tool", "content": "1 def rev(s):\n2     return s"},
    tool_call("edit_file", line=2, text="    return s[::-1]"),
    {"role": "tool", "content": "ok"},
    tool_call("done"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


def test_what_the_assistant_says_counts_whole_and_the_rest_a_little(tokenizer: Any) -> None:
    """The assistant's calls and end-of-turn marks count too; the frame around them, tools and users do not."""
    example = encode(tokenizer, {"messages": TALK, "tools": TOOLS}, "here")
    assert set(example.weights) == {1.0, CONTEXT_WEIGHT}
    runs = [
        (weight, tokenizer.decode([token for token, _ in run]))
        for weight, run in groupby(zip(example.token_ids, example.weights, strict=True), key=lambda pair: pair[1])
    ]
    spoken = [text for weight, text in runs if weight == 1.0]
    assert spoken == [
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "rev.py"}}\n</tool_call><|im_end|>',
        '<tool_call>\n{"name": "edit_file", "arguments": {"line": 2, "text": "    return s[::-1]"}}\n'
        "</tool_call><|im_end|>",
        '<tool_call>\n{"name": "done", "arguments": {}}\n</tool_call><|im_end|>',
    ]
    whole = tokenizer.apply_chat_template(TALK, tools=TOOLS, tokenize=False)
    assert "".join(text for _, text in runs) == whole
    assert all(text.endswith("<|im_start|>assistant\n") for weight, text in runs[:-1] if weight != 1.0)


def test_plain_text_counts_whole(tokenizer: Any) -> None:
    example = encode(tokenizer, {"text": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>c<|endoftext|>"}, "here")
    assert set(example.weights) == {1.0}
    assert tokenizer.decode(example.token_ids).endswith("<|endoftext|>")


def test_every_conversation_of_the_real_corpus_has_its_answers_weighed(tokenizer: Any, tmp_path: Path) -> None:
    write_corpus(tmp_path, 160, seed=5)
    for where, document in read_corpus(tmp_path):
        example = encode(tokenizer, document, where)
        assert len(example.weights) == len(example.token_ids)
        ends = sum(message["role"] == "assistant" for message in document.get("messages", ()))
        stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
        weighed = sum(w == 1.0 for token, w in zip(example.token_ids, example.weights, strict=True) if token == stop)
        assert weighed == ends


def test_documents_come_in_a_fixed_order_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"text": "third"}\n')
    (tmp_path / "a.jsonl").write_text('{"text": "first"}\n{"messages": []}\n')
    (tmp_path / "notes.txt").write_text("not read")
    assert list(read_corpus(tmp_path)) == [
        (f"{tmp_path / 'a.jsonl'}:1", {"text": "first"}),
        (f"{tmp_path / 'a.jsonl'}:2", {"messages": []}),
        (f"{tmp_path / 'b.jsonl'}:1", {"text": "third"}),
    ]


@pytest.mark.parametrize(
    "line", ["", "{", "null", "3", '"text"', '["text"]', '{"text": 3}', '{"messages": {}}', '{"tools": []}']
)
def test_a_line_that_is_no_document_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' * 4)
    (tmp_path / "b.jsonl").write_text('{"text": "fine"}\n' * 2 + line + '\n{"text": "fine"}\n')
    with pytest.raises(ConfigError, match=r"b\.jsonl:3: (no JSON|no object|neither)"):
        list(read_corpus(tmp_path))


def test_a_folder_without_a_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        list(read_corpus(tmp_path / "nowhere"))


@pytest.mark.parametrize("messages", [[], ["x"], [{"content": "x"}], [TALK[0], {"role": "assistant", "tool_calls": 3}]])
def test_a_conversation_that_the_template_refuses_is_named(tokenizer: Any, messages: list[Any]) -> None:
    with pytest.raises(ConfigError, match="part:7"):
        encode(tokenizer, {"messages": messages}, "part:7")


def test_given_tokens_count_within_their_spans_alone(tokenizer: Any) -> None:
    example = encode(tokenizer, {"token_ids": [5, 6, 7, 8, 9], "spans": [[1, 2], [3, 5]]}, "here")
    assert example.token_ids == [5, 6, 7, 8, 9]
    assert example.weights == [0.0, 1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("ids", "spans", "word"),
    [
        ([5, 512], [[0, 1]], "token_ids: want integers from 0 to 511"),
        ([5, -1], [[0, 1]], "token_ids"),
        ([5, True], [[0, 1]], "token_ids"),
        ([5, 1.0], [[0, 1]], "token_ids"),
        ([5, 6], [[0, 3]], r"spans: want pairs \[start, end\] within 2 tokens"),
        ([5, 6], [[1, 1]], "spans"),
        ([5, 6], [[-1, 1]], "spans"),
        ([5, 6], [0, 1], "spans"),
        ([5, 6], None, "spans"),
    ],
)
def test_given_tokens_that_are_none_of_the_model_are_named(
    tokenizer: Any, ids: list[Any], spans: list[Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=f"part:7: {word}"):
        encode(tokenizer, {"token_ids": ids, "spans": spans}, "part:7")


@given(st.integers(0, 40), st.integers(2, 9))
def test_windows_predict_every_token_once(length: int, row_tokens: int) -> None:
    example = Example(list(range(length)), [float(n) for n in range(length)])
    found = windows(example, row_tokens, source=3)
    assert all(0 < len(each.token_ids) <= row_tokens or length == 0 for each in found)
    assert [token for each in found for token in each.token_ids[1:]] == list(range(1, length))
    assert [weight for each in found for weight in each.weights[1:]] == example.weights[1:]
    assert [each.token_ids[0] for each in found[1:]] == [each.token_ids[-1] for each in found[:-1]]
    assert {each.source for each in found} == {3}


def test_a_conversation_that_the_template_itself_refuses_is_named(tokenizer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ConfigError, match="part:7: roles must alternate"):
        encode(tokenizer, {"messages": TALK}, "part:7")
