"""What a process tells the kernel about itself: prctl, for which Python has no words."""

import ctypes

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


def forbid_looking() -> None:
    """Keep the memory and the descriptors of this process, and of those that it forks, from others of its user."""
    _set(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of every process below whose own parent ends."""
    _set(_PR_SET_CHILD_SUBREAPER, 1)


def _set(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")
