"""Directories and files as people have them: every command says in a line what is wrong with them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMANDS = ("run", "score", "doctor", "policies", "export", "backup", "audit", "replay")
MORE = {"export": ["--out", "out.jsonl"], "backup": ["--into", "copy"], "audit": ["head"], "replay": ["--out", "again"]}


def looping(path: Path) -> None:
    path.symlink_to(path.name)


def with_file(name: str, content: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        (path / name).write_bytes(content)

    return make


ODD: dict[str, Callable[[Path], None]] = {
    "a link to itself": looping,
    "settings in another encoding": with_file("onward.toml", "# Größe\n".encode("utf-16")),
}
ADDRESSES = {
    "no JSON": b"{",
    "another JSON": b"[]",
    "no UTF-8": b"\xff",
    "no process": b'{"pid": "x", "urls": []}',
    "no number of a process": b'{"pid": 99999999999999999999, "urls": ["http://127.0.0.1:9"]}',
    "everybody's process": b'{"pid": 0, "urls": ["http://127.0.0.1:9"]}',
    "no list": b'{"pid": 1, "urls": "http://127.0.0.1:9"}',
    "no path": b'{"pid": 1, "urls": ["http://127.0.0.1:9"], "certificate": 1}',
}


def said_by(command: str, directory: Path) -> str:
    """Return the one line on stderr or, of doctor, its words, of a command that is refused."""
    more = MORE.get(command, [])
    arguments = [command, *more, str(directory)] if command == "audit" else [command, str(directory), *more]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONWARD_")}
    done = subprocess.run(
        [sys.executable, "-m", "onward", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=directory.parent,
        env=environment | {"COLUMNS": "500"},
    )
    assert done.returncode in (1, 2), done.stderr
    if command != "doctor" or done.stderr:
        assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr or done.stdout


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_odd_directory_is_named_in_a_line(tmp_path: Path, command: str, what: str) -> None:
    ODD[what](tmp_path / "odd")
    assert "/odd" in said_by(command, tmp_path / "odd")


@pytest.mark.parametrize("mode", ["embedded", "distributed"])
def test_a_folder_in_the_addresss_place_is_named_in_a_line(tmp_path: Path, mode: str) -> None:
    (tmp_path / "service.json" / "mine").mkdir(parents=True)
    (tmp_path / "onward.toml").write_text(f'mode = "{mode}"\n')
    told = said_by("run", tmp_path)
    assert "service.json: a folder" in told
    assert (tmp_path / "service.json" / "mine").is_dir()


@pytest.mark.parametrize("what", ADDRESSES)
def test_a_spoilt_address_is_that_of_no_service(tmp_path: Path, what: str) -> None:
    """Another program's file, or one that a full disk left."""
    (tmp_path / "service.json").write_bytes(ADDRESSES[what])
    assert "no service runs here" in said_by("policies", tmp_path)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A name of Latin-1, say: neither a log line nor the files that quote it could hold it."""
    path = tmp_path / os.fsdecode(b"caf\xe9")
    assert "no UTF-8" in said_by("doctor", path)
    assert "no UTF-8" in said_by("policies", path)
    assert [*tmp_path.iterdir()] == []
