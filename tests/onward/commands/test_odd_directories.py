"""Directories and files as people have them: every command says in a line what is wrong with them."""

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import made_events
import pytest

from core.events import Topic
from onward.cli import main
from onward.directory.addresses import find_urls, write_address
from onward.directory.layout import Layout
from onward.wiring.foundation import open_foundation

COMMANDS = ("run", "score", "doctor", "policies", "export", "backup", "audit", "replay", "serve")
MORE = {"export": ["--out", "out.jsonl"], "backup": ["--into", "copy"], "audit": ["head"], "replay": ["--out", "again"]}


def looping(path: Path) -> None:
    path.symlink_to(path.name)


def with_file(name: str, content: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        (path / name).write_bytes(content)

    return make


ODD: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("hello"),
    "a link to itself": looping,
    "settings in another encoding": with_file("onward.toml", "# Größe\n".encode("utf-16")),
}
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
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


Said = Callable[[str, Path], str]


def words_of(command: str, directory: Path) -> list[str]:
    more = MORE.get(command, [])
    return [command, *more, str(directory)] if command == "audit" else [command, str(directory), *more]


def checked(command: str, code: object, said: str, warned: str) -> str:
    """Return the one line on stderr or, of doctor, its words, of a command that is refused."""
    assert code in (1, 2), warned
    if command != "doctor" or warned:
        assert warned.count("\n") == 1, warned
    return warned or said


@pytest.fixture
def said_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Said:
    """Return what commands are run by, in this process, which has imported all of them."""
    for name in [name for name in os.environ if name.startswith("ONWARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("onward.cli.keep_private", lambda: None)  # which is for good
    monkeypatch.chdir(tmp_path)

    def said(command: str, directory: Path) -> str:
        monkeypatch.setattr("sys.argv", ["onward", *words_of(command, directory)])
        with pytest.raises(SystemExit) as ended:
            main()
        return checked(command, ended.value.code, *capfd.readouterr())

    return said


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_odd_directory_is_named_in_a_line(said_by: Said, tmp_path: Path, command: str, what: str) -> None:
    ODD[what](tmp_path / "odd")
    assert "/odd" in said_by(command, tmp_path / "odd")


@pytest.mark.parametrize("is_named", [True, False], ids=["opened", "written"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_refused_write_is_told_in_a_line(
    said_by: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, is_named: bool
) -> None:
    """What opens a file is told of which; what writes into one is not."""
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "log.db").touch()
    (odd / "store.db").touch()
    for code in REFUSED:

        def refuse(directory: Path, code: int = code) -> Layout:
            named = (str(directory / "log.db"),) if is_named else ()
            raise OSError(code, os.strerror(code), *named)

        monkeypatch.setattr(Layout, "of", refuse)
        told = said_by(command, odd)
        assert (f"{odd}/log.db: " if is_named else str(odd)) in told
        assert os.strerror(code) in told


@pytest.mark.parametrize("name", ["with space", "a#b", "100%", "what?", "it's", 'a"b', "%20", "[a]*", "a::b", "~", "ü"])
def test_everything_lies_in_a_directory_of_any_name(said_by: Said, tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    for _ in range(2):  # made, and opened again
        with closing(open_foundation(directory)) as foundation:
            foundation.log.append_blocking(Topic.TURNS, [made_events.completion()])
            foundation.blobs.put("policies/1/manifest", b"a manifest")
            assert foundation.blobs.list("policies/") == ["policies/1/manifest"]
            assert foundation.blobs.local("policies/1/manifest") == directory / "blobs/policies/1/manifest"
            with foundation.store.work() as work:
                version = work.policies.allocate(made_events.NOW)
    assert version.version == 2
    write_address(directory / "service.json", "http://127.0.0.1:9")
    assert find_urls(directory) == ["http://127.0.0.1:9"]
    (directory / "service.json").unlink()
    told = said_by("policies", directory)
    assert f"{directory}: no service runs here (`onward run {shlex.quote(str(directory))}`" in told
    assert [found.name for found in tmp_path.iterdir()] == [name]
    assert {"log.db", "store.db", "blobs"} <= {found.name for found in directory.iterdir()}


@pytest.mark.parametrize("mode", ["embedded", "distributed"])
def test_a_folder_in_the_addresss_place_is_named_in_a_line(said_by: Said, tmp_path: Path, mode: str) -> None:
    (tmp_path / "service.json" / "mine").mkdir(parents=True)
    (tmp_path / "onward.toml").write_text(f'mode = "{mode}"\n')
    told = said_by("run", tmp_path)
    assert "service.json: a folder" in told
    assert (tmp_path / "service.json" / "mine").is_dir()


@pytest.mark.parametrize("what", ADDRESSES)
def test_a_spoilt_address_is_that_of_no_service(said_by: Said, tmp_path: Path, what: str) -> None:
    """Another program's file, or one that a full disk left."""
    (tmp_path / "service.json").write_bytes(ADDRESSES[what])
    assert "no service runs here" in said_by("policies", tmp_path)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A name of Latin-1, say: neither a log line nor the files that quote it could hold it."""
    path = tmp_path / os.fsdecode(b"caf\xe9")
    for command in ("doctor", "policies"):
        program = [sys.executable, "-m", "onward", *words_of(command, path)]
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
        assert "no UTF-8" in checked(command, done.returncode, done.stdout, done.stderr)
    assert [*tmp_path.iterdir()] == []


def tree_of(path: Path) -> list[tuple[str, int, bytes]]:
    return [
        (str(each.relative_to(path)), each.stat().st_mode, each.read_bytes() if each.is_file() else b"")
        for each in sorted([path, *path.rglob("*")])
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(said_by: Said, tmp_path: Path, command: str) -> None:
    """Also where it has folders with the names of ours."""
    odd = tmp_path / "odd"
    (odd / "src").mkdir(parents=True)
    (odd / "cache").mkdir()
    (odd / "letter.txt").write_text("dear")
    odd.chmod(0o755)
    before = tree_of(odd)
    told = said_by(command, odd)
    assert tree_of(odd) == before
    if command in ("run", "score", "doctor", "serve"):  # others ask for a service that has run
        assert "letter.txt and 1 more" in told
        assert "take a new or an empty directory" in " ".join(told.split())


NO_ONES = {
    "nothing": [],
    "a fresh volume": ["lost+found/", ".Trash-0/", ".snapshot/"],
    "settings": ["onward.toml", "notes.md"],
    "a service with notes": ["log.db", "store.db", "blobs/", "notes.md", "old/"],
    "an engine's host": ["hosts/", "cache/", "ready/"],
    "blobs mounted, and nothing else yet": ["blobs/"],
    "a replica of the API": ["apis/", "spools/", "starts/"],
}


@pytest.mark.parametrize("entries", NO_ONES.values(), ids=NO_ONES)
def test_a_directory_that_is_ours_or_nobodys_is_taken(tmp_path: Path, entries: list[str]) -> None:
    for entry in entries:
        (tmp_path / entry).mkdir() if entry.endswith("/") else (tmp_path / entry).touch()
    with closing(open_foundation(tmp_path)) as foundation:
        assert foundation.layout.store.exists()
    with closing(open_foundation(tmp_path)):
        pass
