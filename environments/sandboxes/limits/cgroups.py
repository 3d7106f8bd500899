"""Limits on all processes of a sandbox together, by control groups of either version.

A group is a folder that the kernel makes and forgets: in version 1 one for each controller, in version 2 one for all.
Names hold the owner's process id and start, so that those of an owner that was killed are found and cleared away."""

import contextlib
import errno
import itertools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.sandboxes import owners
from environments.sandboxes.sandbox import Limits

_PREFIX = "onward-sandbox"
_PERIOD_MICROSECONDS = 100_000
_CONTROLLERS = ("memory", "pids", "cpu")
_EMPTIES_WITHIN_SECONDS = 5.0
_NUMBERS = itertools.count(1)  # of this process's groups: one is removed by its name, which no other may have had


@dataclass(frozen=True)
class ControlGroup:
    """The limits of one sandbox: a folder for each controller, the memory's first."""

    folders: tuple[Path, ...]

    @property
    def doors(self) -> list[Path]:
        """The files of which each takes in a process that writes 0 there, with all that it starts.

        Where a thread may move by itself (version 1), it does so without the lock on all forks of the machine, for
        which a whole process waits some milliseconds in each group."""
        return [folder / "tasks" if (folder / "tasks").exists() else folder / "cgroup.procs" for folder in self.folders]

    @contextlib.contextmanager
    def entrances(self) -> Iterator[list[int]]:
        """Yield descriptors of the doors. However this ends, they are closed, also where not all could be opened."""
        with contextlib.ExitStack() as opened:
            entrances = []
            for file in self.doors:
                entrances.append(os.open(file, os.O_WRONLY | os.O_CLOEXEC))
                opened.callback(os.close, entrances[-1])
            yield entrances

    def killed_for_memory(self) -> int:
        """Return how many processes the kernel has killed so far because memory was used up."""
        memory = self.folders[0]
        for name in ("memory.events", "memory.oom_control"):
            if (memory / name).exists():
                pairs = (line.split() for line in (memory / name).read_text().splitlines())
                return int({key: value for key, value, *_ in pairs}.get("oom_kill", 0))
        return 0

    def remove(self) -> None:
        """Kill what is in it and remove it. Raises InfrastructureFailure where a process does not die."""
        for folder in self.folders:
            _remove(folder)


class Groups:
    """Makes groups below this process's own. Raises InfrastructureFailure where no cgroup can be written."""

    def __init__(self, roots: Mapping[str, Path] | Path | None = None) -> None:
        found = _find() if roots is None else roots
        self.roots = [found] if isinstance(found, Path) else [found[name] for name in _CONTROLLERS]
        self._unified = isinstance(found, Path)
        sweep(self.roots)

    def make(self, limits: Limits) -> ControlGroup:
        name = f"{_PREFIX}-{owners.mark()}-{next(_NUMBERS)}"
        group = ControlGroup(tuple(root / name for root in self.roots))
        try:
            for folder in group.folders:
                folder.mkdir()
            for folder in group.folders:
                for file, value in _values(limits, folder, unified=self._unified):
                    (folder / file).write_text(value)
        except OSError as error:
            group.remove()
            raise InfrastructureFailure("sandbox", f"its limits cannot be set: {error}") from error
        return group


def sweep(roots: list[Path]) -> list[Path]:
    """Remove the groups whose owner is gone, with what is left in them, and return them."""
    stale = [folder for root in roots for folder in root.glob(f"{_PREFIX}-*") if not _owner_lives(folder.name)]
    for folder in stale:
        _remove(folder)
    return stale


def _values(limits: Limits, folder: Path, *, unified: bool) -> Iterator[tuple[str, str]]:
    """Yield the files of one folder with what is written there.

    Files of a sandbox lie in memory, and count twice: under their own limit, and here."""
    memory = str(limits.memory_bytes + limits.disk_bytes)
    quota = str(max(1000, int(limits.cpus * _PERIOD_MICROSECONDS)))
    if unified:
        yield "memory.max", memory
        if (folder / "memory.swap.max").exists():
            yield "memory.swap.max", "0"
    elif (folder / "memory.limit_in_bytes").exists():
        yield "memory.limit_in_bytes", memory
        if (folder / "memory.memsw.limit_in_bytes").exists():
            yield "memory.memsw.limit_in_bytes", memory
    if unified or (folder / "pids.max").exists():
        yield "pids.max", str(limits.processes)
    if unified:
        yield "cpu.max", f"{quota} {_PERIOD_MICROSECONDS}"
    elif (folder / "cpu.cfs_quota_us").exists():
        yield "cpu.cfs_period_us", str(_PERIOD_MICROSECONDS)
        yield "cpu.cfs_quota_us", quota


def _find() -> Mapping[str, Path] | Path:
    """Return where groups can be made: a folder for each controller of version 1, or one of version 2."""
    own = {kinds: path for _, kinds, path in _lines("/proc/self/cgroup", ":")}
    mounted = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    first = {
        name: Path(place)
        for name in _CONTROLLERS
        for _, place, kind, options, *_ in mounted
        if kind == "cgroup" and name in options.split(",")
    }
    if first.keys() == set(_CONTROLLERS):
        paths = {name: path for kinds, path in own.items() for name in kinds.split(",")}
        return {name: _writable(_below(first[name], paths[name])) for name in _CONTROLLERS}
    second = next((Path(place) for _, place, kind, *_ in mounted if kind == "cgroup2"), None)
    if second is None:
        raise InfrastructureFailure("sandbox", "no cgroup is mounted here, so that its limits cannot be set")
    return _delegated(_below(second, own.get("", "/")))


def _below(mounted: Path, own: str) -> Path:
    """Return this process's own group, or the mounted one where it is not shown in this namespace."""
    place = mounted / own.lstrip("/")
    return place if place.exists() else mounted


def _writable(folder: Path) -> Path:
    if not os.access(folder, os.W_OK):
        raise InfrastructureFailure("sandbox", f"{folder} cannot be written, so that its limits cannot be set")
    return folder


def _delegated(own: Path) -> Path:
    """Return a group of version 2 that hands its controllers on: only one without processes of its own may.

    It stands beside this process's group where the parent hands them on, else this process moves into a leaf."""
    for folder in (own, own.parent):
        if set(_CONTROLLERS) <= set(_read(folder / "cgroup.subtree_control").split()):
            return _writable(folder)
    offered = set(_read(own / "cgroup.controllers").split())
    if not set(_CONTROLLERS) <= offered:
        missing = ", ".join(sorted(set(_CONTROLLERS) - offered))
        raise InfrastructureFailure("sandbox", f"{own} has no controller {missing}: delegate it to this service")
    try:
        leaf = _writable(own) / f"{_PREFIX.partition('-')[0]}-owner"
        leaf.mkdir(exist_ok=True)
        for pid in _read(own / "cgroup.procs").split():
            (leaf / "cgroup.procs").write_text(pid)
        (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    except OSError as error:
        raise InfrastructureFailure("sandbox", f"{own} does not hand its controllers on: {error}") from error
    return own


def _remove(folder: Path) -> None:
    until = time.monotonic() + _EMPTIES_WITHIN_SECONDS
    while folder.exists():
        try:
            folder.rmdir()
        except OSError as error:
            if time.monotonic() > until:
                raise InfrastructureFailure("sandbox", f"{folder} does not end: {error}") from error
            for pid in _read(folder / "cgroup.procs").split():
                _kill(int(pid))
            time.sleep(0.002)


def _kill(pid: int) -> None:
    if pid == 0:  # it is of another namespace, and to kill it by this number kills our own group
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _owner_lives(name: str) -> bool:
    pid, started = name.removeprefix(f"{_PREFIX}-").split("-")[:2]
    return owners.lives(f"{pid}-{started}")


def _read(file: Path) -> str:
    """Return what a group's file says, nothing where there is none, or another process removes it meanwhile."""
    try:
        return file.read_text()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
        return ""


def _lines(file: str, separator: str) -> Iterator[list[str]]:
    for line in Path(file).read_text().splitlines():
        yield line.split(separator, 2)
