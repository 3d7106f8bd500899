"""Layers of images on disk: each is what one command changed of the files below it, as an upper folder of overlayfs.

A layer's folder holds it under the name `root`, by which sandboxes know that it lies over their root.
A layer is named by the digest of all that it comes of, is made once, whichever process comes first, and appears
whole or not at all."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.sandboxes.alone import alone
from environments.sandboxes.bubblewrap import program, seccomp
from environments.sandboxes.limits.cgroups import ControlGroup, Groups
from environments.sandboxes.sandbox import Limits

_TAIL_BYTES = 2_000
_LOOKS_EVERY_SECONDS = 0.25
_LEAST_FREE_BYTES = 1 << 30  # of the disk, whatever a step writes
# Nothing of overlayfs that ties an upper folder to the place where it was made.
_OPTIONS = "redirect_dir=off,metacopy=off,index=off"
# How this machine reaches registries: seen while an image is built, and by no agent.
_LENT = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/apt")
_MOUNT_AND_RUN = """
while [ "$1" != -- ]; do echo 0 >"$1" && shift || exit; done
mount -t overlay overlay -o "$2" "$3" && shift 3 && exec "$@"
"""
# Of root's rights those that installers use; none that reaches this machine: mounts, devices, or raw packets and ports
# of its network.
_RIGHTS = ("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETFCAP", "SETPCAP", "KILL", "AUDIT_WRITE")
_MOST = Limits(memory_bytes=8 << 30, cpus=float(os.cpu_count() or 1), processes=2048, disk_bytes=0)


@dataclass(frozen=True)
class Step:
    """One command that makes a layer, and what it is given."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    workdir: str
    stdin: bytes = b""
    says: str = ""  # what failed, in the words of who wrote it


class Layers:
    """The layers in one folder, which several processes may share."""

    def __init__(self, folder: Path) -> None:
        """Keep layers below `folder`, which is made when the first one is."""
        if set(",:\\") & set(str(folder.resolve())):
            raise InfrastructureFailure(
                "image", f"{folder}: overlayfs takes no folder with a comma, colon or backslash"
            )
        self._folder = folder.resolve()

    async def made(self, key: str, root: Path, below: Sequence[Path], step: Step, timeout_seconds: float) -> Path:
        """Return the layer named `key`, made by a step on what is below it where it is not there yet.

        Raises InfrastructureFailure, with the end of the step's output, where the step fails or takes too long."""
        place = self._folder / key
        if place.is_dir():
            return place
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)  # a layer may hold a set-user-ID program of somebody else's
        async with alone(self._folder / f".{key}.lock"):
            if not place.is_dir():
                await asyncio.to_thread(self._clear, key)
                making = Path(tempfile.mkdtemp(dir=self._folder, prefix=f".{key}."))
                try:
                    await _make(making, root, below, step, timeout_seconds)
                    os.rename(making, place)
                finally:
                    await asyncio.to_thread(shutil.rmtree, making, ignore_errors=True)
        return place

    def _clear(self, key: str) -> None:
        """Remove what a process left that was killed while it made this layer; its mounts went with it."""
        for left in self._folder.glob(f".{key}.*/"):
            shutil.rmtree(left, ignore_errors=True)


async def _make(making: Path, root: Path, below: Sequence[Path], step: Step, timeout_seconds: float) -> None:
    upper, work, merged = _laid_out(making)
    lower = ":".join([*(str(layer / "root") for layer in reversed(below)), str(root)])
    options = f"lowerdir={lower},upperdir={upper},workdir={work},{_OPTIONS}"
    options = options if os.geteuid() == 0 else f"{options},userxattr"
    log, given = making / "log", making / "stdin"
    await asyncio.to_thread(given.write_bytes, step.stdin)
    async with _limited() as group:
        doors = map(str, group.doors) if group is not None else ()
        enter = [*_own_mounts(), "sh", "-c", _MOUNT_AND_RUN, "sh", *doors, "--", options, str(merged)]
        with _filters() as filters, _opened(given) as stdin, log.open("wb") as output:
            process = await _started([*enter, *_confined(merged, step, filters)], stdin, output.fileno(), filters)
            wrong = await _ended(process, timeout_seconds, making)
        memory = ", out of memory" if group is not None and group.killed_for_memory() else ""
    if wrong is not None:
        raise InfrastructureFailure("image", f"{step.says}: {wrong}{memory}: {_tail(log)}")
    await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
    merged.rmdir()


def _laid_out(making: Path) -> tuple[Path, Path, Path]:
    """Make the folders of one overlay: what changes, what the kernel needs for it, and where both are seen."""
    upper, work, merged = (making / name for name in ("root", "work", "merged"))
    for folder in (upper, work, merged):
        folder.mkdir()
    upper.chmod(0o755)
    making.chmod(0o755)
    return upper, work, merged


async def _started(
    command: Sequence[str], stdin: int, output: int, handed_on: Sequence[int]
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=handed_on,
            # The first process inside keeps what it is told, where a step may read it: no key of ours.
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
    except FileNotFoundError as error:
        raise InfrastructureFailure("image", f"{error.filename} is not installed") from error


async def _ended(process: asyncio.subprocess.Process, timeout_seconds: float, making: Path) -> str | None:
    """Wait for a process, and return what went wrong, in words.

    It is ended with all of its group where it takes too long, or takes the room on the disk that others need."""
    until = time.monotonic() + timeout_seconds
    try:
        while (left := until - time.monotonic()) > 0:
            try:
                code = await asyncio.wait_for(process.wait(), min(left, _LOOKS_EVERY_SECONDS))
            except TimeoutError:
                if shutil.disk_usage(making).free < _LEAST_FREE_BYTES:
                    return f"left less than {_LEAST_FREE_BYTES >> 30} GiB free on the disk"
                continue
            return f"exit code {code}" if code else None
        return f"took more than {timeout_seconds:g} s"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(-min(_TAIL_BYTES, log.stat().st_size), os.SEEK_END)
        return file.read().decode(errors="replace").strip()


def _own_mounts() -> list[str]:
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", "--propagation", "private", *mapped]


@asynccontextmanager
async def _limited() -> AsyncIterator[ControlGroup | None]:
    """Yield a control group for all processes of a step, None where none can be written."""
    try:
        group = Groups().make(_MOST)
    except InfrastructureFailure:
        yield None
        return
    try:
        yield group
    finally:
        await asyncio.to_thread(group.remove)


@contextmanager
def _filters() -> Iterator[list[int]]:
    """Yield descriptors of the filters of system calls, which are those of sandboxes."""
    with ExitStack() as opened:
        yield [opened.enter_context(_in_memory(rules)) for rules in seccomp.programs()]


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def _confined(merged: Path, step: Step, filters: Sequence[int]) -> list[str]:
    """Return the arguments of bubblewrap: the merged files as the root, the network, and nothing of the processes."""
    filtered = [word for each in filters for word in ("--add-seccomp-fd", str(each))]
    lent = [word for place in _LENT for word in ("--ro-bind-try", place, place)]
    variables = [word for name, value in step.environment.items() for word in ("--setenv", name, value)]
    rights = [word for name in _RIGHTS for word in ("--cap-add", f"CAP_{name}")]
    libraries = ":".join(program.libraries())
    return [
        *(["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []),
        *(program.find(), "--cap-drop", "ALL", *rights, *filtered),
        *("--bind", str(merged), "/", "--dev", "/dev", "--proc", "/proc", *lent),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--clearenv", *variables),
        *("--chdir", step.workdir, "--", *step.command),
    ]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file that nobody else needs: a program reads it, and nobody has to feed that program."""
    with path.open("rb") as file:
        path.unlink()
        yield file.fileno()
