"""The file of a report: all of it as JSON, or its rows as a table, with the whole report beside that."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from core.errors import ConfigError
from onward.replays.exports.files import beside_of, cell

Report = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
Write = Callable[[Report, Rows], None]


def is_table(out: Path) -> bool:
    return out.suffix.lower() == ".csv"


def require_folder(out: Path, of: str) -> None:
    """Refuse a table's name for what is a folder of files. Raises ConfigError."""
    if is_table(out):
        raise ConfigError(f"--out {out}: want a folder, for {of}: that is no table of a .csv")


def require_new(out: Path) -> None:
    """Refuse places that are in use. Raises ConfigError."""
    for path in _places(out):
        if path.exists():
            raise ConfigError(f"--out {path}: it is there already")


@contextmanager
def report_file(out: Path) -> Iterator[Write]:
    """Open the file for a report that is computed next; nothing is left of it where that fails.

    What is yielded takes the report and its rows, each with the same columns: they are the table of a `.csv`, and the
    report is then in `FILE.csv.json`. Raises ConfigError where there is no place for it."""
    require_new(out)
    with ExitStack() as files, ExitStack() as undo:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            opened = []
            for path in _places(out):
                opened.append(files.enter_context(path.open("x", encoding="utf-8", newline="")))
                undo.callback(path.unlink)
        except OSError as error:
            raise ConfigError(f"--out {out}: {error.strerror}") from error

        def write(report: Report, rows: Rows) -> None:
            opened[-1].write(json.dumps(report, indent=1) + "\n")
            if is_table(out):
                table = csv.writer(opened[0])
                table.writerow(rows[0])
                table.writerows([cell(value) for value in row.values()] for row in rows)

        yield write
        undo.pop_all()


def _places(out: Path) -> list[Path]:
    return [out, beside_of(out)] if is_table(out) else [out]
