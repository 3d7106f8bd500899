"""Spool directories of several processes under one root.

Each process has its own, locked while it lives (flock(2)). Another process adopts a directory whose owner is gone, so
that what waits in it still reaches the log."""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from ingest.spool.files import has_segments
from ingest.spool.spool import SpoolingLog

_LOCK = ".lock"  # beside its directory
_LOOK_EVERY_S = 2.0
logger = logging.getLogger(__name__)

OpenSpool = Callable[[Path], SpoolingLog]


class SpoolDirectory:
    """A directory that this process holds until `release`, or until it ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock

    def release(self) -> None:
        os.close(self._lock)


def claim(root: Path) -> SpoolDirectory:
    """Claim the first directory that no process holds, with what waits in it, or make a new one."""
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        path = root / f"{number:04d}"
        path.mkdir(exist_ok=True)
        held = _try(path)
        if held is not None:
            return held
        number += 1


def _try(path: Path) -> SpoolDirectory | None:
    lock = os.open(path.with_suffix(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return SpoolDirectory(path, lock)


class Orphans:
    """A stage that adopts directories whose processes are gone, and appends what waits in them to the log."""

    def __init__(self, root: Path, open_spool: OpenSpool) -> None:
        """Make the stage. `open_spool` opens a directory's spool; closing that must leave the log open."""
        self._root, self._open_spool = root, open_spool
        self._adopted: tuple[SpoolDirectory, SpoolingLog] | None = None
        self._look_at_s = 0.0

    def step(self, timeout_s: float) -> int:
        """Drain one orphan at a time: no client waits for them."""
        if self._adopted is None and time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + _LOOK_EVERY_S
            self._adopted = self._find()
        elif self._adopted is not None and self._adopted[1].depth_records == 0:
            self._let_go()
            return 1
        time.sleep(timeout_s)
        return 0

    def close(self) -> None:
        """Stop; what still waits is left for the next process."""
        if self._adopted is not None:
            self._let_go()

    def _find(self) -> tuple[SpoolDirectory, SpoolingLog] | None:
        for path in sorted(self._root.iterdir()):
            held = _try(path) if path.is_dir() and has_segments(path) else None
            if held is not None:
                logger.warning("%s: adopting what a process that is gone left there", path)
                return held, self._open_spool(path)
        return None

    def _let_go(self) -> None:
        assert self._adopted is not None
        directory, spool = self._adopted
        spool.close_spool()
        directory.release()
        self._adopted = None
