"""`onward audit` on a real directory: changes behind the service's back are found, and commands are written."""

import json
import os
import pwd
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.errors import ConfigError
from core.store import open_sqlite
from onward.cli import export as export_past
from onward.commands.accounts.audit import export, show_head, verify
from onward.commands.accounts.deeds import record_command
from onward.wiring.foundation import open_foundation

KEY = {"ONWARD_AUDIT__KEY": "a-key-of-the-auditors"}


def newest(directory: Path) -> dict[str, Any]:
    with closing(open_sqlite(directory / "store.db")) as store, store.look() as view:
        return dict(msgspec.json.decode(view.audit.newest(None, 99, 1)[0].record))


def change(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(directory / "store.db")) as connection:
        connection.execute(statement)
        connection.commit()


def is_whole(directory: Path, file: Path | None = None, *heads: Path) -> bool:
    return verify(directory, KEY, file, heads, as_json=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory as a service leaves it, with four entries in its trail."""
    open_foundation(tmp_path / "data").close()  # as the first start does, without the rest of it
    for number in range(4):
        record_command(tmp_path / "data", KEY, "read", "onward something", "acme", number=str(number))
    return tmp_path / "data"


def test_a_whole_trail_is_said_to_be_whole(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_whole(directory)
    assert json.loads(capsys.readouterr().out) == {"entries": 4, "heads": 1, "found": []}
    first = directory.parent / "first.jsonl"
    export(directory, KEY, first, None)
    first.write_text(first.read_text().partition("\n")[0] + "\n")
    capsys.readouterr()
    verify(directory, KEY, first, [], as_json=False)
    assert "1 entry; heads: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("statement", "sequence"),
    [
        ("UPDATE audit SET digest = 'x' WHERE sequence = 2", 2),
        ("DELETE FROM audit WHERE sequence = 2", 2),
        ("DELETE FROM audit WHERE sequence = 4", 4),
    ],
)
def test_a_trail_that_was_changed_is_not(
    directory: Path, capsys: pytest.CaptureFixture[str], statement: str, sequence: int
) -> None:
    change(directory, statement)
    assert not is_whole(directory)
    assert json.loads(capsys.readouterr().out)["found"][0]["sequence"] == sequence


def test_a_head_kept_elsewhere_shows_what_was_cut_off_with_the_head_beside_the_store(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_head(directory, KEY)
    kept = tmp_path / "kept.json"
    kept.write_text(capsys.readouterr().out)
    change(directory, "DELETE FROM audit WHERE sequence > 2")
    (directory / "audit" / "head.json").unlink()
    assert is_whole(directory)
    assert not is_whole(directory, None, kept)
    forged = {**json.loads(kept.read_text()), "sequence": 2}
    kept.write_text(json.dumps(forged))
    assert not is_whole(directory, None, kept)
    with pytest.raises(ConfigError, match="there is no such file"):
        is_whole(directory, None, tmp_path / "none")


def test_an_export_is_checked_like_the_store(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, user = tmp_path / "trail.jsonl", pwd.getpwuid(os.getuid()).pw_name
    export(directory, KEY, out, None)
    told = json.loads(capsys.readouterr().out)
    assert (told["entries"], told["head"]["sequence"]) == (5, 5)
    deed = newest(directory)
    assert (deed["by"], deed["kind"], deed["what"]) == (f"shell:{user}", "read", "onward audit export")
    assert is_whole(directory, out)
    lines = out.read_text().splitlines()
    for changed in (lines[:4], lines[1:], [lines[0].replace("acme", "evil"), *lines[1:]]):
        out.write_text("\n".join(changed))
        assert not is_whole(directory, out)
    out.write_text("no entry")
    with pytest.raises(ConfigError, match="line 1 is no entry"):
        is_whole(directory, out)
    export(directory, KEY, out, "other")
    (only,) = map(json.loads, out.read_text().splitlines())
    assert (only["what"], only["namespace"]) == ("onward audit export", "other")


def test_an_export_of_the_past_is_written_before_it_begins(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no records"):
        export_past(directory, out=tmp_path / "past.jsonl", namespace="acme")
    deed = newest(directory)
    assert (deed["kind"], deed["what"], deed["namespace"]) == ("read", "onward export", "acme")
