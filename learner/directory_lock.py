"""A lock so that one learner works in a directory: what it keeps there is a single lineage's."""

import fcntl
import os
from pathlib import Path

from core.errors import ConfigError


class DirectoryLock:
    """A lock that is held from construction until `release`.

    It is the operating system's (flock(2), on the directory itself), and is freed when its holder dies. Raises
    ConfigError, naming the directory, when another process holds it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise ConfigError(f"{directory}: another learner works here") from error

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
