"""The filter of system calls: those that libseccomp knows today, less what no program of a task needs.

What is not known is refused as if the kernel did not have it (ENOSYS), which is how programs learn to do without; what
is forbidden is refused with EPERM. Calls of another architecture end the process."""

import errno
import importlib
import tempfile
from typing import Any

from environments.errors import InfrastructureFailure

_KNOWN = range(600)  # numbers of system calls; the newest is below 480
_FORBIDDEN_FOR = {
    "other processes' memory and descriptors": "ptrace process_vm_readv process_vm_writev process_madvise "
    "process_mrelease pidfd_getfd kcmp",
    "namespaces and mounts": "unshare setns mount umount umount2 pivot_root chroot open_tree open_tree_attr move_mount "
    "fsopen fsconfig fsmount fspick mount_setattr statmount listmount",
    "keyrings, and programs for the kernel": "add_key request_key keyctl bpf perf_event_open userfaultfd "
    "io_uring_setup io_uring_enter io_uring_register lookup_dcookie",
    "the machine's kernel, clock, names, swap and ports": "kexec_load kexec_file_load init_module finit_module "
    "delete_module create_module query_module get_kernel_syms reboot settimeofday clock_settime clock_adjtime adjtimex "
    "stime sethostname setdomainname swapon swapoff iopl ioperm syslog acct quotactl quotactl_fd nfsservctl _sysctl "
    "sysfs ustat uselib vhangup modify_ldt vm86 vm86old",
    "files without paths, watches over file systems, memory that no limit counts": "open_by_handle_at "
    "name_to_handle_at fanotify_init fanotify_mark memfd_secret",
    "where memory lies": "mbind set_mempolicy set_mempolicy_home_node migrate_pages move_pages",
}
FORBIDDEN = frozenset(name for names in _FORBIDDEN_FOR.values() for name in names.split())
_AS_IF_UNKNOWN = frozenset({"clone3"})  # its flags cannot be seen; the C library falls back on clone
_NEW_NAMESPACES = 0x7E020000  # all flags of clone that make namespaces
_ARGUMENTS = {
    "socket": (1, 2, 10, 16),  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK; AF_VSOCK would reach the machine's host
    "personality": (0x0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF),
}
"""Calls that are let through with these first arguments alone."""
_TTY_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into a terminal


def programs() -> tuple[bytes, bytes]:
    """Return two filters as the kernel takes them, of which both must let a call through.

    The second one is there for what can only be said as an exception: typing into a terminal. Raises
    InfrastructureFailure where the system has no libseccomp."""
    library = _library()
    return _known_calls(library), _typing(library)


def _library() -> Any:
    try:
        return importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError) as error:  # the latter where it finds no libseccomp
        raise InfrastructureFailure("sandbox", f"system calls cannot be filtered: {error}") from error


def _known_calls(library: Any) -> bytes:
    rules = library.SyscallFilter(library.ERRNO(errno.ENOSYS))
    for number in _KNOWN:
        _add(library, rules, _name(library, number))
    return _exported(rules)


def _typing(library: Any) -> bytes:
    rules = library.SyscallFilter(library.ALLOW)
    for request in _TTY_INPUT:
        rules.add_rule(library.ERRNO(errno.EPERM), "ioctl", _low_half(library, 1, request))
    return _exported(rules)


def _exported(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _name(library: Any, number: int) -> str | None:
    try:
        name: bytes = library.resolve_syscall(library.system_arch(), number)
    except ValueError:
        return None
    return name.decode()


def _add(library: Any, rules: Any, name: str | None) -> None:
    if name is None or name in _AS_IF_UNKNOWN:
        return
    if name in FORBIDDEN:
        rules.add_rule(library.ERRNO(errno.EPERM), name)
    elif name == "clone":
        rules.add_rule(library.ALLOW, name, library.Arg(0, library.MASKED_EQ, _NEW_NAMESPACES, 0))
    elif name in _ARGUMENTS:
        for value in _ARGUMENTS[name]:
            rules.add_rule(library.ALLOW, name, _low_half(library, 0, value))
    else:
        rules.add_rule(library.ALLOW, name)


def _low_half(library: Any, argument: int, value: int) -> Any:
    """Compare what the kernel looks at: a number that is equal in the low 32 bits means the same to it."""
    return library.Arg(argument, library.MASKED_EQ, 0xFFFFFFFF, value)
