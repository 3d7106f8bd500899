"""The contract of every blob store, run over each adapter."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from core.blobs import _ERRORS, FsspecBlobs
from core.errors import ConfigError

ADAPTERS: dict[str, Callable[[Path], FsspecBlobs]] = {
    "directory": lambda path: FsspecBlobs(path / "blobs"),
    "memory": lambda path: FsspecBlobs(f"memory://{uuid.uuid4().hex}", cache=path / "cache"),
}


@pytest.fixture(params=ADAPTERS)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> FsspecBlobs:
    return ADAPTERS[request.param](tmp_path)


def test_what_is_put_is_got(blobs: FsspecBlobs) -> None:
    blobs.put("manifests/7.json", b"{}")
    blobs.put("empty", b"")
    assert blobs.get("manifests/7.json") == b"{}"
    assert blobs.get("empty") == b""
    assert blobs.exists("manifests/7.json")
    assert not blobs.exists("manifests")


def test_a_put_replaces(blobs: FsspecBlobs) -> None:
    blobs.put("a", b"long content")
    blobs.put("a", b"short")
    assert blobs.get("a") == b"short"
    assert blobs.list("") == ["a"]


def test_files_go_in_and_come_out(blobs: FsspecBlobs, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 << 20))
    blobs.put_file("weights/1/model.safetensors", source)
    assert blobs.local("weights/1/model.safetensors").read_bytes() == source.read_bytes()
    blobs.put("weights/1/model.safetensors", b"new")
    assert blobs.local("weights/1/model.safetensors").read_bytes() == b"new", "no stale copy"


def test_what_is_put_passes_by_once(blobs: FsspecBlobs, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom((1 << 20) + 7))
    seen = bytearray()
    blobs.put_file("x", source, seen.extend)
    assert bytes(seen) == source.read_bytes() == blobs.get("x")


def test_lists_are_sorted_and_by_prefix(blobs: FsspecBlobs) -> None:
    assert blobs.list("") == []
    for path in ("b/2", "a", "b/10", "bc"):
        blobs.put(path, b"x")
    assert blobs.list("") == ["a", "b/10", "b/2", "bc"]
    assert blobs.list("b/") == ["b/10", "b/2"]
    assert blobs.list("b") == ["b/10", "b/2", "bc"]


@pytest.mark.parametrize("blobs", ["directory"], indirect=True)  # one in memory is of one thread
def test_a_list_has_all_that_was_there_before_it(blobs: FsspecBlobs) -> None:
    """Others come beside it meanwhile: who follows by lists would pass over what is left out."""
    there: list[str] = []

    def write() -> None:
        for number in range(200):
            path = f"turns/{number:06d}"
            blobs.put(path, b"x")
            there.append(path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while writer.is_alive():
            before = there.copy()
            assert set(before) <= set(blobs.list("turns/"))
    finally:
        writer.join()


class Unanswered(Exception):
    """An error of an object store's library, which is no OSError."""


class Store(MemoryFileSystem):  # type: ignore[misc]
    """An object store that lists the folders which its console made, and of which one name does not answer."""

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        return super().find(path, *arguments, **{**options, "withdirs": True})

    def isfile(self, path: str) -> bool:
        if path.endswith("away"):
            raise Unanswered("nothing answers")
        return bool(super().isfile(path))


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FsspecBlobs:
    """Return blobs in an object store; its library need not be installed."""
    modules: dict[str, ModuleType] = {}
    for name, error in _ERRORS[request.param]:
        setattr(modules.setdefault(name, ModuleType(name)), error, Unanswered)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(_registry, request.param, type(request.param, (Store,), {"protocol": request.param}))
    return FsspecBlobs(f"{request.param}://{uuid.uuid4().hex}")


def test_folders_that_an_object_store_lists_are_no_blobs(store: FsspecBlobs) -> None:
    store.put("turns/1/a", b"x")
    assert store.list("") == ["turns/1/a"]


def test_what_an_object_store_raises_is_an_oserror_that_names_the_blob(store: FsspecBlobs) -> None:
    with pytest.raises(OSError, match="turns/away: nothing answers"):
        store.exists("turns/away")


def test_what_is_missing_is_a_missing_file(blobs: FsspecBlobs) -> None:
    for read in (blobs.get, blobs.local):
        with pytest.raises(FileNotFoundError):
            read("nothing/here")
    assert not blobs.exists("nothing/here")


def test_delete_is_done_once_or_twice(blobs: FsspecBlobs) -> None:
    blobs.put("a/b", b"x")
    blobs.delete("a/b")
    blobs.delete("a/b")
    assert not blobs.exists("a/b")
    assert blobs.list("") == []


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../up", "a//b", "a/", "./a", ".partial/x"])
def test_no_path_leaves_the_root(blobs: FsspecBlobs, path: str) -> None:
    with pytest.raises(ValueError, match="is no blob path"):
        blobs.put(path, b"x")
    with pytest.raises(ValueError, match="is no blob path"):
        blobs.local(path)


def test_a_reader_sees_the_old_or_the_new_never_a_part(blobs: FsspecBlobs) -> None:
    contents = [bytes([number]) * 200_000 for number in range(2)]
    blobs.put("x", contents[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                blobs.put("x", content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(100):
            assert blobs.get("x") in contents
    finally:
        stop.set()
        writer.join()


def test_a_file_being_read_stays_whole_while_it_is_replaced(blobs: FsspecBlobs) -> None:
    blobs.put("x", b"old" * 1000)
    with blobs.local("x").open("rb") as reader:
        start = reader.read(3)
        blobs.put("x", b"new" * 2000)
        blobs.local("x")
        assert start + reader.read() == b"old" * 1000


def test_a_put_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    blobs = FsspecBlobs(tmp_path / "blobs")
    blobs.put("a", b"old")
    with pytest.raises(FileNotFoundError):
        blobs.put_file("a", tmp_path / "nothing")
    with pytest.raises(TypeError):
        blobs.put("a", "no bytes")  # type: ignore[arg-type]
    assert blobs.get("a") == b"old"
    assert list((tmp_path / "blobs" / ".partial").iterdir()) == []


def test_a_filesystem_without_locks_takes_files_and_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    partial = tmp_path / "blobs" / ".partial"
    (partial / "folder").mkdir(parents=True)
    (partial / "file").write_bytes(b"left")
    blobs = FsspecBlobs(tmp_path / "blobs")
    blobs.put("a", b"whole")
    assert blobs.get("a") == b"whole"
    assert sorted(path.name for path in partial.iterdir()) == ["file", "folder"]


def test_what_a_killed_writer_left_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    source, partial = tmp_path / "source", tmp_path / "blobs" / ".partial"
    source.write_bytes(os.urandom(3 << 20))
    script = (
        "import os, signal, sys; from pathlib import Path; from core.blobs import FsspecBlobs\n"
        "kill = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "FsspecBlobs(Path(sys.argv[1])).put_file('a', Path(sys.argv[2]), kill)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "blobs"), str(source)], check=False)
    assert len(list(partial.iterdir())) == 1
    blobs, held = FsspecBlobs(tmp_path / "blobs"), list[int]()
    assert list(partial.iterdir()) == []

    def look(_: memoryview) -> None:
        FsspecBlobs(tmp_path / "blobs")
        held.append(len(list(partial.iterdir())))

    blobs.put_file("a", source, look)
    assert set(held) == {1}
    assert blobs.get("a") == source.read_bytes()


def test_a_remote_store_needs_a_cache_for_local_files() -> None:
    blobs = FsspecBlobs(f"memory://{uuid.uuid4().hex}")
    blobs.put("a", b"x")
    with pytest.raises(ConfigError, match="cache"):
        blobs.local("a")


def test_an_unknown_kind_of_url_is_named() -> None:
    with pytest.raises(ConfigError, match="nonsense://x"):
        FsspecBlobs("nonsense://x")
