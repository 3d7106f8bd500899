"""The kernel's calls for namespaces and mounts that Python 3.11 has no words for, by ctypes.

Every call raises OSError with the kernel's reason. Numbers are those of <linux/mount.h>; those of the system calls are
the same on every architecture since 5.2."""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LIBC = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442

BASE = "/tmp"  # where a launcher's own namespace has its mounts, and hides the machine's folder
NEW_NAMESPACE_OF_MOUNTS = 0x00020000
NEW_NAMESPACE_OF_USERS = 0x10000000

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 0x1, 0x2, 0x4, 0x100000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_SIGKILL, _SIGSTOP = 9, 19


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _checked(_LIBC.unshare(ctypes.c_int(flags)), "unshare")


def keep_mounts_private() -> None:
    """Let nothing that is mounted from now on be seen in another namespace."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE, "")


def mount(kind: str, target: str, options: str) -> None:
    """Mount a new file system without devices and set-user-ID programs."""
    _mount(kind, target, kind, _MS_NOSUID | _MS_NODEV, options)


def copy_of_tree(path: str) -> int:
    """Return a descriptor of a detached mount that shows the tree at `path`, with what is mounted below it."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return _checked(_call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), f"open_tree of {path}")


def make_read_only(tree: int) -> None:
    """Refuse writes, devices and set-user-ID programs below a detached mount."""
    wanted = _Attributes(set=_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
    _set_attributes(tree, wanted, _AT_RECURSIVE, "read-only")


def show_owners_as(tree: int, users: Mapping[int, int], groups: Mapping[int, int]) -> None:
    """Show files of one owner as those of another, by an id-mapped mount (Linux 5.12). Needs root."""
    pid = os.fork()
    if pid == 0:
        try:
            unshare(NEW_NAMESPACE_OF_USERS)
            os.kill(os.getpid(), _SIGSTOP)
        finally:
            os._exit(1)
    try:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise OSError("no namespace of users can be made here")
        _write_map(f"/proc/{pid}/uid_map", users)
        _write_map(f"/proc/{pid}/gid_map", groups)
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(pid, _SIGKILL)
        os.waitpid(pid, 0)
    try:
        _set_attributes(tree, _Attributes(set=_ATTR_IDMAP, userns=namespace), 0, "id-mapped")
    finally:
        os.close(namespace)


def attach(tree: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    arguments = (tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    _checked(_call(_MOVE_MOUNT, *arguments), f"move_mount to {target}")


def die_with_parent() -> None:
    """Be killed when the process that started this one ends; a change of user forgets it."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl")


def _write_map(path: str, ids: Mapping[int, int]) -> None:
    with open(path, "w") as file:
        file.write("".join(f"{inside} {outside} 1\n" for inside, outside in ids.items()))


def _set_attributes(tree: int, wanted: _Attributes, flags: int, what: str) -> None:
    size = ctypes.sizeof(wanted)
    _checked(_call(_MOUNT_SETATTR, tree, b"", flags | _AT_EMPTY_PATH, ctypes.byref(wanted), size), what)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str) -> None:
    told = kind.encode() if kind else None
    done = _LIBC.mount(source.encode(), os.fsencode(target), told, ctypes.c_ulong(flags), os.fsencode(options))
    _checked(done, f"mount of {source} at {target}")


def _call(number: int, *arguments: object) -> int:
    return int(_LIBC.syscall(ctypes.c_long(number), *arguments))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
