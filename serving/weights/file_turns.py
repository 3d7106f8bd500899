"""Turns between the processes of a host, taken by a lock of the operating system's (flock(2)) on a file.

A turn ends with its process, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn_at(path: Path, holder: str = "") -> Iterator[None]:
    """Wait until no other process or thread has the turn at `path`, and hold it; the file is there only meanwhile.

    It contains `holder`, for those who do not wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_named(file.fileno(), path):  # by whoever had it before, who is done
                continue
            file.truncate(0)
            file.write(holder)
            file.flush()
            try:
                yield
            finally:
                path.unlink()
            return


def holder_of(path: Path) -> str | None:
    """Return who holds the turn at `path`; None when nobody does, or did not say so yet."""
    try:
        with path.open() as file:
            if is_locked(file.fileno()):
                return file.read() or None
    except FileNotFoundError:
        pass
    return None


def is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _is_named(descriptor: int, path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
