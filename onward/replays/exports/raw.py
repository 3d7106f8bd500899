"""`onward export`: turns, outcomes and rewards, from log and archive alike, for other tools."""

import base64
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from rich.console import Console
from rich.progress import Progress

from core import codec
from core.errors import ConfigError
from core.events import Topic
from core.ids import Namespace
from core.ports import Record
from ingest.archive.files import SCHEMA, to_row
from onward.replays.history import open_history, period, require_directory
from onward.wiring.foundation import Foundation, open_foundation

FORMATS = ("parquet", "jsonl")
_SCHEMA = SCHEMA.append(pa.field("event", pa.string()))  # as JSON; null: undecodable
_json = msgspec.json.Encoder(enc_hook=codec.plain)


class Sink(Protocol):
    def write(self, records: Sequence[Record]) -> None: ...

    def close(self) -> None: ...


def export_events(
    directory: Path,
    out: Path,
    begin: str | None,
    end: str | None,
    namespace: str | None,
    form: str | None,
    overrides: Mapping[str, str],
) -> dict[str, int]:
    """Write events to `out`; return how many there are of each kind.

    `out` is one file when it ends in .parquet or .jsonl, else a directory with a file for each kind of event, turns
    before rewards, those of a partition in order. It is written whole or not at all. Raises ConfigError naming the
    option at fault."""
    require_directory(directory, overrides)
    if out.exists():
        raise ConfigError(f"--out {out}: it is there already")
    if out.suffix == ".csv":
        raise ConfigError(f"--out {out}: events have no columns in common: with --as turns it is a table")
    times = period(begin, end)
    target = ExportTarget(out, _form(out, form))
    foundation = open_foundation(directory, overrides)
    try:
        with target:
            for topic in (Topic.TURNS, Topic.REWARDS):
                _copy(foundation, topic, target, *times, None if namespace is None else Namespace(namespace))
            if not target.counts:
                raise ConfigError(f"{directory}: no records{_chosen(begin, end, namespace)}")
            target.finish()
    finally:
        foundation.close()
    return target.counts


def _copy(foundation: Foundation, topic: Topic, target: "ExportTarget", *choice: Any) -> None:
    history = open_history(foundation, topic, *choice)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(topic.value, total=1.0)
        for records in history.read():
            target.write(records)
            progress.update(task, completed=history.share)
        progress.update(task, completed=1.0)


def _form(out: Path, form: str | None) -> str:
    suffix = out.suffix.removeprefix(".")
    if suffix not in FORMATS:
        return form or FORMATS[0]
    if form not in (None, suffix):
        raise ConfigError(f"--format {form}: --out {out} ends in .{suffix}")
    return suffix


def _chosen(begin: str | None, end: str | None, namespace: str | None) -> str:
    given = {"--from": begin, "--to": end, "--namespace": namespace}
    return "".join(f" {option} {value}" for option, value in given.items() if value is not None)


class ExportTarget:
    """The place of an export, under a temporary name until it is whole."""

    def __init__(self, out: Path, form: str) -> None:
        self._out, self._form = out, form
        self._is_file = out.suffix == f".{form}"
        self._aside = out.with_name(f"{out.name}.partial")
        self._sinks: dict[str, Sink] = {}
        self._open = ExitStack()
        self.counts: dict[str, int] = {}

    def __enter__(self) -> "ExportTarget":
        self._clear()
        self._out.parent.mkdir(parents=True, exist_ok=True)
        if not self._is_file:
            self._aside.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._clear()

    def write(self, records: Sequence[Record]) -> None:
        by_kind: dict[str, list[Record]] = {}
        for record in records:
            by_kind.setdefault(to_row(record)["kind"] or "undecodable", []).append(record)
        for kind, some in by_kind.items():
            self.counts[kind] = self.counts.get(kind, 0) + len(some)
            if not self._is_file:
                self._sink(f"{kind}.{self._form}").write(some)
        if self._is_file and records:
            self._sink("").write(records)

    def finish(self) -> None:
        self._open.close()
        self._aside.rename(self._out)

    def _sink(self, name: str) -> Sink:
        if name not in self._sinks:
            path = self._aside / name if name else self._aside
            sink: Sink = ParquetSink(path) if self._form == "parquet" else JsonlSink(path)
            self._open.callback(sink.close)
            self._sinks[name] = sink
        return self._sinks[name]

    def _clear(self) -> None:
        """Remove what an interrupted export left."""
        if self._aside.is_dir():
            shutil.rmtree(self._aside)
        self._aside.unlink(missing_ok=True)


class ParquetSink:
    """The columns of the archive, and the event as JSON."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd")

    def write(self, records: Sequence[Record]) -> None:
        rows = [to_row(record) | {"event": _event_json(record)} for record in records]
        self._writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))

    def close(self) -> None:
        self._writer.close()


class JsonlSink:
    """An object a line; `raw` (base64) where there is no event."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")

    def write(self, records: Sequence[Record]) -> None:
        self._file.writelines(_json.encode(_line(record)) + b"\n" for record in records)

    def close(self) -> None:
        self._file.close()


def _event_json(record: Record) -> str | None:
    return None if record.event is None else _json.encode(record.event).decode()


def _line(record: Record) -> dict[str, Any]:
    row = to_row(record)
    raw = row.pop("raw")
    return row | {"event": record.event} | ({} if record.event else {"raw": base64.b64encode(raw).decode()})
