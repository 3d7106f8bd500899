"""Spool directories of several processes under one root.

Each process has its own, locked while it lives (flock(2)). Another process adopts a directory whose owner is gone, so
that what waits in it still reaches the log."""

import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

from core.stages.stage import Stage
from ingest.spool.files import has_segments
from ingest.spool.spool import SpoolingLog

_LOCK = ".lock"  # beside its directory
_LOOK_EVERY_S = 2.0
_SETTLED_EVERY_S = 0.2  # looked at whether what was adopted is in the log
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


class Orphans(Stage):
    """Looks for directories whose processes are gone, and lets what waits in them follow into the log."""

    def __init__(self, root: Path, open_spool: OpenSpool) -> None:
        """`open_spool`: on a directory; closing it must leave the log open."""
        super().__init__()
        self._root, self._open_spool = root, open_spool
        self._adopted: tuple[SpoolDirectory, SpoolingLog] | None = None

    def tick(self) -> float:
        """Adopt one directory, or let go of it once it is empty."""
        if self._adopted is None:
            self._adopted = self._find()
        elif self._adopted[1].depth_records == 0:
            self._let_go()
            return 0.0
        return _LOOK_EVERY_S if self._adopted is None else _SETTLED_EVERY_S

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
