"""What the launcher is told: the mounts that it makes, as data, and the command line of bubblewrap over them.

Every path of this machine is opened by the launcher under a name of its own below BASE, so that the sandbox's table of
mounts tells nothing of where things lie here, and so that a user without rights can be given what only root may see."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from environments.sandboxes.bubblewrap import runtime
from environments.sandboxes.bubblewrap.mounts import BASE
from environments.sandboxes.sandbox import SandboxSpec

HOME = "/home/agent"
USER = 1000  # inside, and its group; 0 over an image
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "ssl/certs")
_ETC_OF_NETWORKS = ("resolv.conf", "gai.conf", "services", "protocols")
_NO_VIEW = ("kcore", "keys", "latency_stats", "timer_list", "sched_debug", "kallsyms", "cmdline", "version_signature")
_NO_VIEW_OF_FOLDERS = ("acpi", "asound", "scsi")
_ISOLATED = [
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--disable-userns",
]
_HARDENED = [
    "--die-with-parent",
    "--new-session",
    "--as-pid-1",
    "--clearenv",
    "--hostname",
    "sandbox",
    "--cap-drop",
    "ALL",
]


@dataclass(frozen=True)
class BoundFolder:
    """A folder of this machine, shown below BASE under a name; `owned`: its owner's files are the sandbox's."""

    source: str
    name: str
    owned: bool = False


@dataclass
class Plan:
    """All that the launcher needs.

    `changes` are the folders that the sandbox writes, each over the names of trees below it, newest first; `user` is
    the one that all of it runs as, None for the launcher's own."""

    program: str
    libraries: list[str]  # of the program, where the system has none
    filters: tuple[str, str]
    user: int | None
    disk_bytes: int
    processes: int
    most_bytes: int | None  # of each process's memory, where there is no limit on all together
    trees: list[BoundFolder] = field(default_factory=list)
    changes: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)

    def written(self) -> dict[str, Any]:
        return asdict(self)


def fill(plan: Plan, spec: SandboxSpec, made: Path, control: int, limits: list[int]) -> None:
    """Add the mounts and the command line of one sandbox; `made` is the runtime's folder."""
    plan.trees.append(BoundFolder(str(made), "runtime", owned=True))
    arguments = [*_ISOLATED, *_HARDENED, "--setenv", "PYTHONHOME", runtime.PLACE]
    if not spec.network:
        arguments.append("--unshare-net")
    user = str(USER if spec.root is None else 0)
    arguments += ["--uid", user, "--gid", user]
    if spec.root is None:
        arguments += _system(spec)
    else:
        root = _changed(plan, "root", spec.root, *(layer / "root" for layer in spec.layers))
        arguments += ["--bind", root, "/"]
    arguments += ["--ro-bind", f"{BASE}/runtime/inside", runtime.PLACE, *_kernel(plan)]
    if spec.root is None:
        arguments += ["--bind", _changed(plan, "tmp"), "/tmp"]
        arguments += ["--bind", _changed(plan, "home"), HOME]
    if spec.root is None or spec.workspace is not None:
        workspace = _changed(plan, "workspace", *([] if spec.workspace is None else [spec.workspace]))
        arguments += ["--bind", workspace, spec.workdir]
    else:
        arguments += ["--dir", spec.workdir]
    if spec.root is not None:
        arguments += ["--perms", "1777", "--dir", "/tmp"]
    for number, (place, source) in enumerate(spec.folders.items()):
        plan.trees.append(BoundFolder(str(source), f"folder{number}"))
        arguments += ["--ro-bind", f"{BASE}/folder{number}", place]
    if spec.root is None:
        arguments += ["--remount-ro", "/"]
    plan.arguments += [*arguments, "--chdir", spec.workdir, "--", *runtime.start(control, limits)]


def environment(spec: SandboxSpec) -> dict[str, str]:
    """Return what every command of a sandbox is told, and nothing of this machine's environment."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    own = ("agent", HOME) if spec.root is None else ("root", "/root")
    return {"PATH": path, "USER": own[0], "HOME": own[1], "LANG": "C.UTF-8", "TERM": "dumb", **spec.environment}


def _changed(plan: Plan, name: str, *sources: Path) -> str:
    """Add a folder that the sandbox may change, over those of this machine, oldest first; return where it lies."""
    names = [f"{name}{number}" for number in range(len(sources))]
    plan.trees += [BoundFolder(str(source), name, owned=True) for source, name in zip(sources, names, strict=True)]
    plan.changes[name] = names[::-1]
    return f"{BASE}/{name}" if names else f"{BASE}/changes/{name}/upper"


def _system(spec: SandboxSpec) -> list[str]:
    """Show this machine's programs, and of its settings what these need; no home, no service's files, no secrets."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            arguments += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in (*_ETC, *(_ETC_OF_NETWORKS if spec.network else ())):
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        arguments += ["--ro-bind", f"{BASE}/runtime/etc/{name}", f"/etc/{name}"]
    return arguments


def _kernel(plan: Plan) -> list[str]:
    """Show a process table of the sandbox's own, and the devices that hold nothing."""
    arguments = ["--proc", "/proc"]
    for name in _NO_VIEW:
        if os.path.exists(f"/proc/{name}"):
            arguments += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in _NO_VIEW_OF_FOLDERS:
        if os.path.isdir(f"/proc/{name}"):
            arguments += ["--ro-bind", f"{BASE}/empty", f"/proc/{name}"]
    plan.changes["shm"] = []
    return [*arguments, "--dev", "/dev", "--bind", f"{BASE}/changes/shm/upper", "/dev/shm", "--remount-ro", "/dev"]
