"""Ends all processes below one, however fast they multiply."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_SIGKILL, _SIGSTOP = 9, 19


def kill_below(root: int, spared: Collection[int] = ()) -> None:
    """Kill everything below `root`, apart from the children that are spared and what is below those.

    All are stopped before any is killed: what is stopped cannot fork. Those who wake one another are killed in turn."""
    while below(root, spared):
        stopped: set[int] = set()
        while new := below(root, spared) - stopped:
            for pid in new:
                _signal(pid, _SIGSTOP)
            stopped |= new
        for pid in stopped:
            _signal(pid, _SIGKILL)


def below(root: int, spared: Collection[int] = ()) -> set[int]:
    """Return the living process ids below `root`."""
    families = _families(living=True)
    found: set[int] = set()
    waiting = [pid for pid in families.get(root, ()) if pid not in spared]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += families.get(pid, ())
    return found


def children(parent: int) -> set[int]:
    """Return the process ids right below one, with those that have ended and wait to be reaped."""
    return set(_families(living=False).get(parent, ()))


def _families(*, living: bool) -> dict[int, list[int]]:
    """Return the children of each process."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (read := _state_and_parent(name)) is not None:
            state, parent = read
            if not (living and state in (b"Z", b"X")):
                found.setdefault(parent, []).append(int(name))
    return found


def _state_and_parent(pid: str) -> tuple[bytes, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, *_ = file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return state, int(parent)


def _signal(pid: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib is not imported inside
        os.kill(pid, number)
    except ProcessLookupError:
        pass
