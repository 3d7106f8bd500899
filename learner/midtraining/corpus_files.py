"""Reading the documents of a corpus, one at a time, from any position: `.jsonl`, `.jsonl.zst` and `.parquet`.

Anything that is not a document is refused with its file and line, never skipped."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from core.errors import ConfigError

_KINDS = (".jsonl", ".jsonl.zst", ".parquet")
_DATA = frozenset(
    [".json", ".jsonl", ".csv", ".tsv", ".parquet", ".arrow", ".gz", ".bz2", ".xz", ".lz4", ".zst", ".zip", ".tar"]
)
_CHUNK_BYTES = 1 << 20
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class CorpusPosition:
    """The position of the next document.

    It is the file, how many of its documents come before it, and how many bytes, uncompressed (0 in Parquet)."""

    file: int = 0
    documents: int = 0
    offset: int = 0


@dataclass(frozen=True)
class FoundDocument:
    where: str  # file:line, lines counted from 1
    document: dict[str, Any]
    next: CorpusPosition


def files_of(corpus: Path) -> list[Path]:
    """Return the files of a corpus: the one file, or those of a directory in the order of their names.

    Raises ConfigError when there is none, or when a file looks like a part of the corpus and cannot be read."""
    if corpus.is_file():
        if not corpus.name.endswith(_KINDS):
            raise ConfigError(f"{corpus}: want a name that ends in {', '.join(_KINDS)}")
        return [corpus]
    files = [path for path in corpus.glob("*") if path.name.endswith(_KINDS)]
    strange = [path for path in corpus.glob("*") if _DATA & {*path.suffixes} and path not in files]
    if strange:
        raise ConfigError(f"{min(strange)}: want a name that ends in {', '.join(_KINDS)}")
    if not files:
        raise ConfigError(f"{corpus}: no *.jsonl file, nor *.jsonl.zst or *.parquet")
    return sorted(files)


def read_documents(files: Sequence[Path], start: CorpusPosition = CorpusPosition()) -> Iterator[FoundDocument]:
    """Yield the documents from `start` to the end of the last file. Raises ConfigError naming the file and line."""
    for number in range(start.file, len(files)):
        begin = start if number == start.file else CorpusPosition(number)
        read = _read_parquet if files[number].suffix == ".parquet" else _read_lines
        try:
            yield from read(files[number], begin)
        except OSError as error:
            raise ConfigError(f"{files[number]}: {error}") from error


def _read_lines(path: Path, place: CorpusPosition) -> Iterator[FoundDocument]:
    with _opened(path, place.offset) as file:
        for line in file:
            place = CorpusPosition(place.file, place.documents + 1, place.offset + len(line))
            where = f"{path}:{place.documents}"
            yield FoundDocument(where, _parsed(line, where), place)


def _opened(path: Path, offset: int) -> BinaryIO:
    if path.suffix != ".zst":
        file = path.open("rb")
        file.seek(offset)
        return file
    stream: BinaryIO = io.BufferedReader(pa.input_stream(path, compression="zstd"))
    while offset:  # what is compressed can only be read from its beginning
        skipped = len(stream.read(min(offset, _CHUNK_BYTES)))
        if not skipped:
            raise OSError(f"ends {offset} bytes before the place to go on from")
        offset -= skipped
    return stream


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line.decode())
    except ValueError as error:
        raise ConfigError(f"{where}: no JSON ({error})") from error
    return _document(content, where)


def _document(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: no object")
    if isinstance(content.get("text"), str):
        return content
    if any(isinstance(content.get(name), list) for name in ("messages", "token_ids")):
        return content
    raise ConfigError(f"{where}: neither `text` nor `messages`, nor `token_ids`")


def _read_parquet(path: Path, place: CorpusPosition) -> Iterator[FoundDocument]:
    """Yield each row as a document whose members are the row's columns."""
    try:
        with pq.ParquetFile(path) as file:
            for row in _rows(file, place.documents):
                place = CorpusPosition(place.file, place.documents + 1)
                where = f"{path}:{place.documents}"
                yield FoundDocument(where, _document(_without_nulls(row), where), place)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{path}: no Parquet ({error})") from error


def _rows(file: Any, skip: int) -> Iterator[dict[str, Any]]:
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if skip >= size:
            skip -= size
            continue
        for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group]):
            passed = min(skip, batch.num_rows)
            skip -= passed
            yield from batch.slice(passed).to_pylist()


def _without_nulls(value: Any) -> Any:
    """Remove nulls: a column has a value in every row, so what a message lacks would seem to be there."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
