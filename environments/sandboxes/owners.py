"""Marks what a process makes as its own, so that the next one clears away what a killed one left.

A mark is a process id with the time of its start: ids are given out again, this pair never is."""

import os
import shutil
import tempfile
from pathlib import Path


def mark() -> str:
    """Return this process's mark."""
    return f"{os.getpid()}-{_started(os.getpid())}"


def lives(marked: str) -> bool:
    """Tell whether the process with a mark still runs."""
    pid, _, started = marked.partition("-")
    return pid.isdigit() and _started(int(pid)) == started


def folder_in_the_making(directory: Path, kind: str) -> Path:
    """Return a new folder, to be renamed once it is whole; those that killed processes left unfinished are removed."""
    directory.mkdir(parents=True, exist_ok=True)
    for left in directory.glob(f"making-{kind}.*"):
        if not lives(left.name.split(".")[1]):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(dir=directory, prefix=f"making-{kind}.{mark()}."))


def _started(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None
