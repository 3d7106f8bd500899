"""Makes a sandbox's mounts in a namespace that dies with it, gives up root, and becomes bubblewrap.

As root it shows the workspace's files as those of a user that exists nowhere else, and runs everything as that one.
As anybody else it is root in a namespace of users of its own. Nothing that it mounts is seen by the machine, so that
nothing is left when the sandbox ends, however it ends: `launcher PLAN CONTROL`, two descriptors.

Every sandbox waits for it to start, so that it imports little."""

from __future__ import annotations

import marshal
import os
import resource
import sys

from environments.sandboxes.bubblewrap import mounts
from environments.sandboxes.bubblewrap.mounts import BASE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_MOST_DESCRIPTORS = 1024  # of one process: the machine's table of open files is one for all
_BYTES_OF_AN_INODE = 8192  # files at most: the disk's limit over this


def main() -> None:
    told, control = int(sys.argv[1]), int(sys.argv[2])
    with open(told, "rb") as file:
        plan = marshal.load(file)
    try:
        _become(plan, control)
    except OSError as error:
        sys.exit(f"{error}")


def _become(plan: Mapping[str, Any], control: int) -> None:
    mounts.die_with_parent()
    os.umask(0o022)  # whatever the owner's is: another user has to reach the mounts
    program = os.open(plan["program"], os.O_RDONLY | os.O_CLOEXEC)
    filters = [os.open(path, os.O_RDONLY) for path in plan["filters"]]
    _enter(plan["user"])
    _mount(plan)
    if plan["user"] is not None:
        _give_up_root(plan["user"])
    _limit(plan)
    environment = {"LD_LIBRARY_PATH": ":".join(plan["libraries"])} if plan["libraries"] else {}
    given = [argument for each in filters for argument in ("--add-seccomp-fd", str(each))]
    for descriptor in (control, *filters):
        os.set_inheritable(descriptor, True)
    os.execve(program, ["bwrap", *given, *plan["arguments"]], environment)


def _enter(user: int | None) -> None:
    own, group = os.geteuid(), os.getegid()
    mounts.unshare(mounts.NEW_NAMESPACE_OF_MOUNTS | (mounts.NEW_NAMESPACE_OF_USERS if user is None else 0))
    if user is None:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {own} 1\n")
        _write("/proc/self/gid_map", f"0 {group} 1\n")
    mounts.keep_mounts_private()


def _mount(plan: Mapping[str, Any]) -> None:
    trees = {each["name"]: _tree(each, plan["user"]) for each in plan["trees"]}
    inodes = max(4096, plan["disk_bytes"] // _BYTES_OF_AN_INODE)
    mounts.mount("tmpfs", BASE, f"size={plan['disk_bytes']},nr_inodes={inodes},mode=0755")
    os.mkdir(f"{BASE}/empty")
    for name, tree in trees.items():
        os.mkdir(f"{BASE}/{name}")
        mounts.attach(tree, f"{BASE}/{name}")
        os.close(tree)
    for name, below in plan["changes"].items():
        _make_writable(name, below, plan["user"])


def _tree(each: Mapping[str, Any], user: int | None) -> int:
    tree = mounts.copy_of_tree(each["source"])
    if each["owned"] and user is not None:
        owner = os.stat(each["source"])
        mounts.show_owners_as(tree, {owner.st_uid: user}, {owner.st_gid: user})
    mounts.make_read_only(tree)
    return tree


def _make_writable(name: str, below: list[str], user: int | None) -> None:
    upper, work = f"{BASE}/changes/{name}/upper", f"{BASE}/changes/{name}/work"
    for folder in (upper, work):
        os.makedirs(folder)
        if user is not None:
            os.chown(folder, user, user)
    if name in ("tmp", "shm"):
        os.chmod(upper, 0o1777)
    if below:
        os.chmod(upper, os.stat(f"{BASE}/{below[0]}").st_mode & 0o7777)
        os.mkdir(f"{BASE}/{name}")
        lower = ":".join(f"{BASE}/{each}" for each in below)
        plain = "metacopy=off,redirect_dir=off" if user is not None else "userxattr"  # which leaves both off
        options = f"lowerdir={lower},upperdir={upper},workdir={work},index=off,{plain}"
        mounts.mount("overlay", f"{BASE}/{name}", options)


def _give_up_root(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _limit(plan: Mapping[str, Any]) -> None:
    """Set what holds for each process, and where there is no cgroup, what stands in for it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_DESCRIPTORS, _MOST_DESCRIPTORS))
    if plan["most_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (plan["most_bytes"], plan["most_bytes"]))
        resource.setrlimit(resource.RLIMIT_NPROC, (plan["processes"], plan["processes"]))


def _write(path: str, content: str) -> None:
    with open(path, "w") as file:
        file.write(content)
