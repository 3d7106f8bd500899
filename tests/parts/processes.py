"""Processes that may end at any moment, also between two looks at them."""

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Return the words of a process's command line; none where it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # or it is a zombie
        return []
