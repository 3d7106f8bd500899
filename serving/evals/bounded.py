"""Becomes a command within bounds: run as `python -I -S bounded.py CPU_S ARGV...`.

Bounds on processor time, memory, file size and open files; no network where the kernel lets a process leave it. Against
code of a small model that goes astray, not against an attacker: for that, run the suite in a container.
"""

import ctypes
import os
import resource
import sys

MEMORY_BYTES = 2 << 30
FILE_BYTES = 64 << 20
OPEN_FILES = 256
NOT_FOUND = 127
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000


def _leave_network() -> None:
    """Root may; others may where users have namespaces of their own."""
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is not None and unshare(_CLONE_NEWNET) != 0:
        unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def main() -> None:
    cpu_s, argv = int(sys.argv[1]), sys.argv[2:]
    _leave_network()
    for what, most in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    try:
        os.execvp(argv[0], argv)
    except OSError:
        sys.exit(NOT_FOUND)


if __name__ == "__main__":
    main()
