"""The files of a corpus: the same documents in every format and from any position; invalid ones are named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from corpora import read_corpus

from core.errors import ConfigError
from learner.midtraining.corpus_files import files_of, read_documents

DOCUMENTS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"what is {n}? «ä»"}, {"role": "assistant", "content": str(n)}]}
    for n in range(150)
]


def as_lines(documents: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(document, ensure_ascii=False).encode() + b"\n" for document in documents)


def write_jsonl(path: Path, documents: list[dict[str, Any]]) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_bytes(as_lines(documents))
    return path


def write_zst(path: Path, documents: list[dict[str, Any]]) -> Path:
    """Write two frames, as in a file that was appended to."""
    path = path.with_suffix(".jsonl.zst")
    compress, half = zstandard.ZstdCompressor().compress, len(documents) // 2
    path.write_bytes(compress(as_lines(documents[:half])) + compress(as_lines(documents[half:])))
    return path


def write_parquet(path: Path, documents: list[dict[str, Any]]) -> Path:
    path = path.with_suffix(".parquet")
    pq.write_table(pa.Table.from_pylist(documents), path, row_group_size=40)
    return path


Write = Callable[[Path, list[dict[str, Any]]], Path]
each_form = pytest.mark.parametrize("write", [write_jsonl, write_zst, write_parquet])


@each_form
def test_every_form_holds_the_same_documents(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "part", DOCUMENTS)
    assert list(read_corpus(tmp_path)) == [(f"{path}:{n}", each) for n, each in enumerate(DOCUMENTS, 1)]
    assert list(read_corpus(path)) == list(read_corpus(tmp_path)), "a file is a corpus, too"


@each_form
def test_reading_goes_on_from_any_place(tmp_path: Path, write: Write) -> None:
    """A position may also be at a file's end or the next one's beginning."""
    files = [write(tmp_path / "a", DOCUMENTS[:100]), write(tmp_path / "b", DOCUMENTS[100:])]
    whole = list(read_documents(files))
    for number in (0, 38, 39, 40, 63, 64, 98, 99, 100, 148, 149):
        assert list(read_documents(files, whole[number].next)) == whole[number + 1 :]


def test_the_forms_stand_beside_each_other_in_order_of_their_names(tmp_path: Path) -> None:
    for write, name, part in ((write_zst, "b", 1), (write_parquet, "a", 0), (write_jsonl, "c", 2)):
        write(tmp_path / name, DOCUMENTS[part : part + 1])
    assert [document for _, document in read_corpus(tmp_path)] == DOCUMENTS[:3]


@each_form
def test_a_document_that_is_none_is_named(tmp_path: Path, write: Write) -> None:
    documents = [{"text": "fine"}] * 70 + [{"text": None}] + [{"text": "fine"}]
    path = write(tmp_path / "part", documents)
    with pytest.raises(ConfigError, match=rf"{path.name}:71: neither `text` nor `messages`"):
        list(read_corpus(tmp_path))


def test_columns_that_a_message_lacks_are_not_there(tmp_path: Path) -> None:
    """A column of one row is in all rows, as null."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    messages = [{"role": "user", "content": "x"}, call]
    write_parquet(tmp_path / "part", [{"messages": messages, "text": None}, {"messages": None, "text": "y"}])
    assert [document for _, document in read_corpus(tmp_path)] == [
        {"messages": messages},
        {"text": "y"},
    ]


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "part.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    with pytest.raises(ConfigError, match=r"part\.jsonl:2: no JSON"):
        list(read_corpus(tmp_path))


@pytest.mark.parametrize("cut", [4, 40])
@pytest.mark.parametrize("write", [write_zst, write_parquet])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, write: Write, cut: int) -> None:
    path = write(tmp_path / "part", DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ConfigError, match=path.name.replace(".", r"\.")):
        list(read_corpus(tmp_path))


@pytest.mark.parametrize("name", ["part.jsonl.gz", "part.jsonl.bz2", "part.json", "part.parquet.tmp"])
def test_a_part_that_cannot_be_read_is_not_passed_over(tmp_path: Path, name: str) -> None:
    write_jsonl(tmp_path / "fine", DOCUMENTS)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=rf"{name}: want a name that ends in \.jsonl, \.jsonl\.zst, \.parquet"):
        files_of(tmp_path)
    with pytest.raises(ConfigError, match=name):
        files_of(tmp_path / name)
