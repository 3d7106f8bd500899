"""Locks on a directory, for work that one process at a time may do. They end with their process."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import ConfigError


@contextmanager
def exclusive(path: Path, complaint: str) -> Iterator[None]:
    """Hold a lock. Raises ConfigError with the complaint when another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(complaint) from error
        yield
