"""Files by path under one root: a directory, or anything else that fsspec reaches (s3://, gs://, memory://)."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from uuid import uuid4

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from core.errors import ConfigError, how_to_install

_PARTIAL = ".partial"  # where files are written before they are renamed into place
_PIECE_BYTES = 8 << 20  # of a remote file held in memory
_READ_BYTES = 1 << 20  # of a local file
_OF_S3 = (("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError"))
_OF_GCS = (("gcsfs.retry", "HttpError"), ("google.auth.exceptions", "GoogleAuthError"), ("aiohttp", "ClientError"))
_ERRORS = {"s3": _OF_S3, "s3a": _OF_S3, "gs": _OF_GCS, "gcs": _OF_GCS}
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}  # what brings a URL's filesystem


class FsspecBlobs:
    """Implements core.ports.Blobs. Thread-safe.

    In a directory, a file is written aside, synced and renamed; what a writer left that was killed goes when the next
    one opens it. Object stores take each object whole or not at all.
    Files go in and out piece by piece. Whatever a remote store raises is raised as OSError.
    """

    def __init__(self, url: str | Path, cache: Path | None = None) -> None:
        """Open the blobs at a URL. `cache`: where `local` puts fetched files; a directory needs none.

        Raises ConfigError for a URL of an unknown kind."""
        try:
            self._fs: Any
            self._fs, self._root = _opened(url)
        except ImportError as error:
            extra = _EXTRAS.get(str(url).partition(":")[0])
            hint = f"; {how_to_install(extra)}" if extra else ""
            raise ConfigError(f"blobs: {url}: {error}{hint}") from error
        except ValueError as error:
            raise ConfigError(f"blobs: {url}: {error}") from error
        self._foreign = _errors_of(self._fs)
        self.directory = Path(self._root) if "file" in _protocols(self._fs) else None
        self.is_local = self.directory is not None
        self._cache = cache
        for root in filter(None, (self.directory, cache)):
            _sweep(root)

    def put(self, path: str, data: bytes) -> None:
        if self.directory is None:
            with self._explained(path):
                self._fs.pipe_file(self._full(path), data)
        else:
            self._replace(path, lambda file: file.write(data))

    def put_file(self, path: str, source: Path, see: Callable[[memoryview], None] | None = None) -> None:
        """Put a file; `see` sees its bytes pass. On their way to a remote store they are read twice."""
        if self.directory is not None:
            self._replace(path, lambda file: _copy(source, file, see))
            return
        if see:
            for piece in pieces_of(source):
                see(piece)
        with self._explained(path):
            self._fs.put_file(str(source), self._full(path))

    def get(self, path: str) -> bytes:
        with self._explained(path):
            return bytes(self._fs.cat_file(self._full(path)))

    def local(self, path: str, target: Path | None = None) -> Path:
        """Return a local file. Raises FileNotFoundError, and ConfigError when a cache is needed and none is set."""
        if self.directory is not None:
            found = self.directory / _checked(path)
            if not found.is_file():
                raise FileNotFoundError(found)
            return found
        if target is not None:
            with self._explained(path), self._reading(path) as content, target.open("xb") as file:
                shutil.copyfileobj(content, file, _PIECE_BYTES)
            return target
        if self._cache is None:
            raise ConfigError(f"blobs: {self._root} is remote, and no cache directory was given")
        with self._explained(path), self._reading(path) as content:
            _write_whole(self._cache / path, self._cache, lambda file: shutil.copyfileobj(content, file, _PIECE_BYTES))
        return self._cache / path

    def _reading(self, path: str) -> Any:
        return self._fs.open(self._full(path), "rb", block_size=_PIECE_BYTES)

    def exists(self, path: str) -> bool:
        with self._explained(path):
            return bool(self._fs.isfile(self._full(path)))

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with `prefix`, sorted. It looks only in the folder that the prefix names."""
        folder = prefix.rpartition("/")[0]
        with self._explained(prefix):
            found = self._fs.find(f"{self._root}/{folder}" if folder else self._root, detail=True)
        # Some object stores list folders, too: empty objects that their consoles make.
        files = (path for path, about in found.items() if about["type"] != "directory")
        paths = (path.removeprefix(self._root).lstrip("/") for path in files)
        return sorted(path for path in paths if path.startswith(prefix) and not path.startswith(f"{_PARTIAL}/"))

    def delete(self, path: str) -> None:
        """Delete a blob; deleting a missing one does nothing."""
        with suppress(FileNotFoundError), self._explained(path):
            self._fs.rm_file(self._full(path))

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except self._foreign as error:
            raise OSError(f"{path}: {error}") from error

    def _full(self, path: str) -> str:
        return f"{self._root}/{_checked(path)}"

    def _replace(self, path: str, write: Callable[[BinaryIO], object]) -> None:
        assert self.directory is not None
        _write_whole(self.directory / _checked(path), self.directory, write)


def _opened(url: str | Path) -> tuple[Any, str]:
    """Return the filesystem and the root in it. A path is one, whatever a URL would mean by its `::`."""
    if isinstance(url, Path):
        return LocalFileSystem(), str(url.absolute())
    return url_to_fs(url, use_listings_cache=False)  # type: ignore[no-any-return]


def pieces_of(path: Path, start: int = 0, size: int | None = None) -> Iterator[memoryview]:
    """Yield a file's bytes from `start` on, `size` of them if the file has so many.

    Each piece lies where the last one lay: use it before asking for the next. Raises OSError."""
    buffer = memoryview(bytearray(_READ_BYTES if size is None else min(_READ_BYTES, size)))
    left = size
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while count := file.readinto(buffer[:left]):
            left = None if left is None else left - count
            yield buffer[:count]


def _copy(source: Path, target: BinaryIO, see: Callable[[memoryview], None] | None) -> None:
    for piece in pieces_of(source):
        if see:
            see(piece)
        target.write(piece)


def _errors_of(filesystem: Any) -> tuple[type[Exception], ...]:
    """Return what a filesystem raises beside OSError: those of object stores let their libraries' errors through."""
    modules = [module for protocol in _protocols(filesystem) for module in _ERRORS.get(protocol, ())]
    return tuple({getattr(import_module(module), name) for module, name in modules})


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _checked(path: str) -> str:
    """Return the path. Raises ValueError for one that would leave the root."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or str(pure) != path or path.startswith(_PARTIAL):
        raise ValueError(f"{path!r} is no blob path")
    return path


def _write_whole(target: Path, root: Path, write: Callable[[BinaryIO], object]) -> None:
    """All or nothing, and durable: the content is synced before the name appears, the names before returning."""
    partial = root / _PARTIAL
    partial.mkdir(parents=True, exist_ok=True)
    aside = partial / uuid4().hex
    try:
        with _held(aside) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            aside.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error  # that of a write names no file
    finally:
        aside.unlink(missing_ok=True)
    for directory in (target.parent, *target.parent.parents):
        _sync_directory(directory)
        if directory == root:
            break


def _held(aside: Path) -> BinaryIO:
    """Open a new file, which is locked while its writer lives."""
    while True:
        file = aside.open("xb")
        with suppress(OSError):  # where a filesystem has no locks, nothing is swept either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # it was swept before it was locked


def _sweep(root: Path) -> None:
    """Remove what writers left that were killed: nobody holds it, and it may have somebody's words."""
    for left in (root / _PARTIAL).glob("*"):
        with suppress(OSError), left.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
