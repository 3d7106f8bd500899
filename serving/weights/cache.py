"""Versions rebuilt on this host: DIRECTORY/DIGEST/SHARD.

Any number of processes may share one directory. Each builds in a scratch directory and renames it into place; of those
that want the same version, one builds and the others wait. Nothing is synced: what a power cut leaves broken is
recognised by its digest, and built again."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from core.errors import WeightsError
from core.model.adapters import digest_of_version
from core.ports import AdapterConfig
from serving.weights.file_turns import is_locked, turn_at

_SCRATCH, _LOCK, _TURN = ".scratch-", ".lock", ".turn-"
_ADAPTER = "adapter.json"  # beside an adapter's shards: its AdapterConfig
_SETTLED_S = 60.0  # a scratch directory so old has its lock, or lost its owner
Fingerprint = tuple[tuple[str, int, int, int], ...]


class VersionCache:
    """Keeps the `keep` versions that were used last."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory, keep
        self._verified: dict[str, Fingerprint] = {}

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a temporary directory, removed afterwards.

        Its owner holds a lock of the operating system's (flock(2)) that ends with the process: so abandoned ones are
        found."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._sweep()
        directory = Path(mkdtemp(prefix=_SCRATCH, dir=self._directory))
        with (directory / _LOCK).open("x") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield directory
            finally:
                shutil.rmtree(directory)

    @contextmanager
    def turn(self, digest: str) -> Iterator[None]:
        """Wait while another process or thread builds this version. The wait also ends when its process does."""
        with turn_at(self._directory / f"{_TURN}{digest}"):
            yield

    def known(self, digest: str) -> list[Path] | None:
        """Return a version's shards if they were verified in this process and are unchanged since; else None."""
        with suppress(FileNotFoundError):  # another process lets it go in this moment
            shards = self._shards(digest)
            if shards and self._verified.get(digest) == fingerprint(shards):
                os.utime(self._directory / digest)
                return shards
        return None

    def find(self, digest: str, adapter: AdapterConfig | None = None) -> list[Path] | None:
        """Return a version's shards, verified; None when there are none, or damaged ones, which are removed."""
        shards = self._found(digest, adapter)
        if shards is None:
            with suppress(FileNotFoundError):  # there is no such directory yet
                self._remove(digest)
        elif adapter is not None:
            self._note(digest, adapter)
        return shards

    def _found(self, digest: str, adapter: AdapterConfig | None) -> list[Path] | None:
        if shards := self.known(digest):
            return shards
        with suppress(FileNotFoundError):  # another process lets it go in this moment
            shards = self._shards(digest)
            seen = fingerprint(shards)
            if shards and _digest(shards, adapter) == digest:
                self._verified[digest] = seen
                return self.known(digest)
        return None

    def _note(self, digest: str, adapter: AdapterConfig) -> None:
        """Write down what kind of adapter a version is, which a former build did not."""
        note = self._directory / digest / _ADAPTER
        with suppress(FileNotFoundError):
            if not note.exists():
                note.write_bytes(msgspec.json.encode(adapter))

    def find_any(self, digest: str) -> tuple[list[Path], AdapterConfig | None] | None:
        """Find a version of which nobody can say whether it is an adapter; return its shards, and that.

        What does not fit is left alone: an adapter that a former build kept does not say that it is one."""
        adapter = None
        with suppress(FileNotFoundError, msgspec.DecodeError):
            adapter = msgspec.json.decode((self._directory / digest / _ADAPTER).read_bytes(), type=AdapterConfig)
        shards = self._found(digest, adapter)
        return None if shards is None else (shards, adapter)

    def lend(self, digest: str, scratch: Path) -> list[Path] | None:
        """Find a version and link its shards into `scratch`.

        They stay there when another process evicts the version."""
        shards = self.find(digest)
        if not shards:
            return None
        home = scratch / digest
        home.mkdir()
        try:
            for shard in shards:
                os.link(shard, home / shard.name)
        except FileNotFoundError:  # it was let go in this moment
            shutil.rmtree(home)
            return None
        return sorted(home.iterdir())

    def add(self, digest: str, built: Path, adapter: AdapterConfig | None = None) -> list[Path]:
        """Move in a directory that holds a version's verified shards and nothing else."""
        home, verified = self._directory / digest, sorted(built.iterdir())
        if adapter is not None:
            (built / _ADAPTER).write_bytes(msgspec.json.encode(adapter))
        shards, seen = [home / path.name for path in verified], fingerprint(verified)
        while not _renamed(built, home):  # another process was faster
            if found := self.find(digest, adapter):
                return found
        self._verified[digest] = seen
        self._evict()
        return shards

    def _shards(self, digest: str) -> list[Path]:
        home = self._directory / digest
        return sorted(path for path in home.iterdir() if path.name != _ADAPTER) if home.is_dir() else []

    def _evict(self) -> None:
        homes = [home for home in self._directory.iterdir() if not home.name.startswith(".")]
        for home in sorted(homes, key=used_at)[: -self._keep]:
            self._remove(home.name)

    def _remove(self, digest: str) -> None:
        """Remove a version at once for all readers."""
        self._verified.pop(digest, None)
        gone = Path(mkdtemp(prefix=_SCRATCH, dir=self._directory))
        with suppress(FileNotFoundError):
            (self._directory / digest).rename(gone / digest)
        shutil.rmtree(gone)

    def _sweep(self) -> None:
        for directory in self._directory.glob(f"{_SCRATCH}*"):
            if time.time() - used_at(directory) / 1e9 > _SETTLED_S and not _is_locked(directory / _LOCK):
                shutil.rmtree(directory, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file where the file system can, so that its bytes lie on the disk, and in memory, once.

    Who writes to the source afterwards writes to the target as well, which its fingerprint tells."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _renamed(built: Path, home: Path) -> bool:
    """Rename; return False when the target exists."""
    try:
        built.rename(home)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def used_at(directory: Path) -> float:
    """Return when a directory was last used, in ns; 0 for a missing one."""
    try:
        return directory.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _is_locked(path: Path) -> bool:
    try:
        with path.open() as file:
            return is_locked(file.fileno())
    except FileNotFoundError:
        return False


def _digest(shards: Sequence[Path], adapter: AdapterConfig | None) -> str | None:
    try:
        return digest_of_version(shards, adapter)
    except WeightsError:
        return None


def fingerprint(shards: Sequence[Path]) -> Fingerprint:
    """Another one when a file was written to or replaced. Raises FileNotFoundError."""
    stats = [(path.name, path.stat()) for path in shards]
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
