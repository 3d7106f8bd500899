"""A file of rows, under a temporary name until it is whole, and the file beside it that says where they come from."""

import csv
import json
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from blake3 import blake3

from core import codec
from core.errors import ConfigError
from onward.replays.exports.columns import Columns, members_in, schema_of, times_in

FORMATS = (".parquet", ".jsonl", ".csv")
_ROWS_AT_ONCE = 256
_BYTES_AT_ONCE = 1 << 20
_PROVENANCE = b"onward"
_FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r", "\n")
"""What a text begins with that a spreadsheet takes for a formula, and would run: users and models write these."""
_MARK = "'"
_json = msgspec.json.Encoder(enc_hook=codec.plain)


class RowFile:
    """Takes rows, and holds none of them: they go to a file of lines, from which a Parquet file is then made.

    Its columns depend on all rows (`schema_of`). Leaving it removes what did not become whole."""

    def __init__(self, out: Path, columns: Columns) -> None:
        self._out, self._columns = out, columns
        self._lines = out.with_name(f"{out.name}.partial")
        self._converted = out.with_name(f"{out.name}.partial{out.suffix}")
        self._members: set[str] = set()
        self.rows = 0

    def __enter__(self) -> "RowFile":
        self._out.parent.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.unlink(missing_ok=True)
        self._converted.unlink(missing_ok=True)

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        with self._lines.open("wb") as file:
            for row in rows:
                self._members |= members_in(row, self._columns)
                file.write(_json.encode({name: row[name] for name in self._columns}) + b"\n")
                self.rows += 1

    def finish(self, provenance: dict[str, Any]) -> None:
        """Give the file its name; write what is known of it beside it, in Parquet within it as well."""
        made = self._lines
        if self._out.suffix == ".parquet":
            self._write_parquet(provenance)
        elif self._out.suffix == ".csv":
            self._write_csv()
        if self._converted.exists():
            made = self._converted
        beside = json.dumps(provenance | {"digest": digest_of(made)}, indent=1) + "\n"
        beside_of(self._out).write_text(beside)
        made.rename(self._out)

    def _write_csv(self) -> None:
        """Write a line for each row; what is no text or number stands there as JSON.

        A text that a spreadsheet would run has an apostrophe before it, as has one that begins with an apostrophe."""
        with self._lines.open("rb") as lines, self._converted.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(self._columns)
            for line in lines:
                row = msgspec.json.decode(line)
                table.writerow([cell(row[name]) for name in self._columns])

    def _write_parquet(self, provenance: dict[str, Any]) -> None:
        schema, times = schema_of(self._columns, self._members), times_in(self._columns)
        with (
            self._lines.open("rb") as lines,
            pq.ParquetWriter(self._converted, schema, compression="zstd") as writer,
        ):
            while rows := [msgspec.json.decode(line) for line in islice(lines, _ROWS_AT_ONCE)]:
                for row in rows:
                    row.update((name, datetime.fromisoformat(row[name])) for name in times)
                    for said in row.get("outcomes", ()):
                        said["received_at"] = datetime.fromisoformat(said["received_at"])
                writer.write_table(pa.Table.from_pylist(rows, schema))
            writer.add_key_value_metadata({_PROVENANCE: json.dumps(provenance)})


def cell(value: object) -> object:
    """Return a value as it stands in a table, where nothing is taken for a formula."""
    if isinstance(value, str):
        return _MARK + value if value.startswith((*_FORMULAS, _MARK)) else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else value


def beside_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")


def require_free(out: Path) -> None:
    """Refuse a place that is in use, or a file of no known kind. Raises ConfigError."""
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out {out}: with --as, want a file that ends in {' or '.join(FORMATS)}")
    for path in (out, beside_of(out)):
        if path.exists():
            raise ConfigError(f"--out {path}: it is there already")


def digest_of(path: Path) -> str:
    """Return the BLAKE3 digest of a file's bytes."""
    digest = blake3()
    with path.open("rb") as file:
        for part in iter(lambda: file.read(_BYTES_AT_ONCE), b""):
            digest.update(part)
    return f"blake3:{digest.hexdigest()}"
