"""What one process at a time may do in a directory. Locks die with their process."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import ConfigError


@contextmanager
def exclusive(path: Path, complaint: str) -> Iterator[None]:
    """Raises ConfigError with the complaint when another process is within."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(complaint) from error
        yield
