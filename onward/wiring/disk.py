"""What the parts of a service take of this machine's disk."""

import math
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from core import telemetry
from core.clock import SystemClock
from onward.directory.layout import Layout

_KEPT_S = 30.0  # how long sizes are told again: blobs are many files


def disk_of(layout: Layout, clock: SystemClock) -> Callable[[], Mapping[str, int]]:
    """Return a function that measures the bytes of the log, store, blobs, spool and hosts, and what is free.

    A part that another machine or server keeps is not among them. It reads the disk: keep it off the event loop."""
    parts = {"log": _files(layout.log), "store": _files(layout.store), "blobs": [layout.blobs], "spool": [layout.spool]}
    parts["spool"].append(layout.spools)
    measured: tuple[float, Mapping[str, int]] | None = None

    def measure() -> Mapping[str, int]:
        nonlocal measured
        now_s = clock.monotonic()
        if measured is None or now_s - measured[0] > _KEPT_S:
            sizes = {name: _size(paths) for name, paths in parts.items() if any(path.exists() for path in paths)}
            if layout.hosts.exists():
                sizes["hosts"] = bytes_of_hosts(layout)
            measured = now_s, {**sizes, "free": shutil.disk_usage(layout.root).free}
        return measured[1]

    return measure


def bytes_of_hosts(layout: Layout) -> int:
    """Return the bytes of the versions that hosts keep for their engines, but for files that other folders have, too.

    Whole versions are links to those that were fetched; merged ones are a model's size each."""
    found = 0
    for folder, _, names in os.walk(layout.hosts):
        for name in names:
            with suppress(FileNotFoundError):
                told = Path(folder, name).lstat()
                found += told.st_size if stat.S_ISREG(told.st_mode) and told.st_nlink == 1 else 0
    return found


def tell_of_disk(root: Path) -> None:
    """Have this process's metrics say, whenever they are asked, how large the directory's disk is, and what is free."""
    telemetry.DISK.set_function(lambda: _size_and_free(root)[0])
    telemetry.DISK_FREE.set_function(lambda: _size_and_free(root)[1])


def _size_and_free(root: Path) -> tuple[float, float]:
    try:
        found = shutil.disk_usage(root)
    except OSError:  # a directory that is gone must not take all other metrics with it
        return math.nan, math.nan
    return found.total, found.free


def _files(database: Path) -> list[Path]:
    """Return the files of an SQLite database: itself, its write-ahead log and that log's index."""
    return [database, *(database.with_name(f"{database.name}{suffix}") for suffix in ("-wal", "-shm"))]


def _size(paths: list[Path]) -> int:
    return sum(_bytes(path) for path in paths)


def _bytes(path: Path) -> int:
    """Return the bytes below a path; what is gone meanwhile counts as nothing."""
    if not path.is_dir():
        return _of_file(path)
    return sum(_of_file(Path(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _of_file(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
