"""The files of an export of rows: the rows themselves, and beside them a manifest that says what they are.

Rows go to JSON lines first, whatever the format: their digest is of these, and what fields the messages have is known
only when all rows are."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from learner.versions.durable import sync
from onward.replays.exports.columns import Row, fields_in, schema_of

_ROWS_AT_ONCE: Final = 256
_BLOCK: Final = 1 << 20


def manifest_of(out: Path) -> Path:
    """Return the place of the manifest beside a file."""
    return out.with_name(f"{out.name}.manifest.json")


class RowFile:
    """A file under temporary names until `finish`: it is there whole or not at all, and before its manifest."""

    def __init__(self, out: Path, form: str) -> None:
        self._out, self._form = out, form
        self._lines = out.with_name(f"{out.name}.lines.partial")
        self._made = out.with_name(f"{out.name}.partial")
        self._told = manifest_of(out).with_name(f"{manifest_of(out).name}.partial")
        self._digest = hashlib.blake2b(digest_size=16)
        self._fields: set[str] = set()
        self._has_tools = False
        self._open = ExitStack()
        self.rows = 0

    def __enter__(self) -> "RowFile":
        self._out.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open.enter_context(self._lines.open("wb"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()
        for path in (self._lines, self._made, self._told):
            path.unlink(missing_ok=True)

    def write(self, row: Row) -> None:
        line = msgspec.json.encode(row) + b"\n"
        self._digest.update(line)
        self._file.write(line)
        self._fields |= fields_in(row, self._form)
        self._has_tools |= row.get("tools") is not None
        self.rows += 1

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self._form, self._fields, has_tools=self._has_tools)

    def finish(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Give the file and its manifest their names; return the manifest, with what this knows of the file."""
        self._open.close()
        if self._out.suffix == ".parquet":
            self._to_parquet()
        else:
            self._to_lines()
        told = manifest | {
            "rows": self.rows,
            "rows_digest": self._digest.hexdigest(),
            "file": self._out.name,
            "file_bytes": self._made.stat().st_size,
            "file_digest": _digest_of(self._made),
            "columns": {field.name: str(field.type) for field in self.schema},
        }
        self._told.write_text(json.dumps(told, indent=1) + "\n")
        for path in (self._made, self._told):  # whole before they have a name, whatever becomes of the machine
            sync(path)
        named = manifest_of(self._out)
        named.unlink(missing_ok=True)  # of a file that somebody has deleted
        self._made.rename(self._out)
        self._told.rename(named)
        sync(self._out.parent)
        return told

    def _to_parquet(self) -> None:
        schema = self.schema
        with pq.ParquetWriter(self._made, schema, compression="zstd") as writer:
            for rows in self._batches():
                writer.write_table(pa.Table.from_pylist(rows, schema))

    def _to_lines(self) -> None:
        names = self.schema.names
        with self._made.open("wb") as made:
            for rows in self._batches():
                made.writelines(msgspec.json.encode({name: row[name] for name in names}) + b"\n" for row in rows)

    def _batches(self) -> Iterator[list[Row]]:
        with self._lines.open("rb") as lines:
            while rows := [msgspec.json.decode(line) for line in islice(lines, _ROWS_AT_ONCE)]:
                yield rows


def _digest_of(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
