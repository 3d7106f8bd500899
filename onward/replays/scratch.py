"""The place where a past is scored, which then holds what users wrote: a folder that is gone once the work is done."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import ConfigError


@contextmanager
def scratch(place: Path, named: str) -> Iterator[Path]:
    """Yield an empty folder at `place`, and delete it in the end; what a killed run left there is deleted before.

    Raises ConfigError, which calls it `named`, where another process works in it or nothing can be written."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{named}: {error.strerror}") from error
    try:
        _lock(descriptor, named)
        _empty(place)
        try:
            yield place
        finally:
            shutil.rmtree(place)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, named: str) -> None:
    """Lock the folder until its descriptor is closed, which the end of the process does, however it ends."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"{named}: another process is at the same work here") from error


def _empty(place: Path) -> None:
    for left in place.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
