"""Membership in a group of the embedded log: the one process that holds the group's lock file may read.

The lock is the operating system's (flock(2)), so it ends with its holder, however that ends."""

import fcntl
import os
import re
from pathlib import Path

from core.errors import GroupBusy


class GroupLock:
    """A lock held from construction until `release`. Raises GroupBusy when another member, of any process, holds it."""

    def __init__(self, log_path: Path, group: str) -> None:
        assert re.fullmatch(r"[\w-]+", group), f"{group!r} would not do as a file name"
        directory = log_path.with_name(f"{log_path.name}-groups")
        directory.mkdir(exist_ok=True)
        self._file = os.open(directory / f"{group}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._file, 32, 0).decode() or "unknown"
            os.close(self._file)
            raise GroupBusy(f"group {group} of {log_path} has a member already (process {holder})") from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        os.close(self._file)
