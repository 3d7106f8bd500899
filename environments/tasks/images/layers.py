"""Layers of images on disk: each is what one command changed of the files below it, as an upper folder of overlayfs.

A layer's folder holds it under the name `root`, by which sandboxes know that it lies over their root.
A layer is named by the digest of all that it comes of, is made once, whichever process comes first, and appears
whole or not at all."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.sandboxes.alone import alone
from environments.sandboxes.bubblewrap import program

_TAIL_BYTES = 2_000
# Nothing of overlayfs that ties an upper folder to the place where it was made.
_OPTIONS = "redirect_dir=off,metacopy=off,index=off"
# How this machine reaches registries: seen while an image is built, and by no agent.
_LENT = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/apt")
_MOUNT_AND_RUN = 'mount -t overlay overlay -o "$1" "$2" && shift 2 && exec "$@"'
# Of root's rights those that installers use, as Docker's; no mounts and no devices, which would reach this machine.
_RIGHTS = (
    *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP"),
    *("NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
)


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
    command = [*_own_mounts(), "sh", "-c", _MOUNT_AND_RUN, "sh"]
    command += [options if os.geteuid() == 0 else f"{options},userxattr", str(merged), *_confined(merged, step)]
    log, given = making / "log", making / "stdin"
    await asyncio.to_thread(given.write_bytes, step.stdin)
    with _opened(given) as stdin, log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=stdin, stdout=output, stderr=output, start_new_session=True
            )
        except FileNotFoundError as error:
            raise InfrastructureFailure("image", f"{error.filename} is not installed") from error
        ended = await _ended(process, timeout_seconds)
    if ended != 0:
        told = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        how = f"took more than {timeout_seconds:g} s" if ended is None else f"exit code {ended}"
        raise InfrastructureFailure("image", f"{step.says}: {how}: {told}")
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


async def _ended(process: asyncio.subprocess.Process, timeout_seconds: float) -> int | None:
    """Wait for a process, and end it with all of its group where it takes too long; None then."""
    try:
        return await asyncio.wait_for(process.wait(), timeout_seconds)
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _own_mounts() -> list[str]:
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", "--propagation", "private", *mapped]


def _confined(merged: Path, step: Step) -> list[str]:
    """Return the arguments of bubblewrap: the merged files as the root, the network, and nothing of the processes."""
    lent = [word for place in _LENT for word in ("--ro-bind-try", place, place)]
    variables = [word for name, value in step.environment.items() for word in ("--setenv", name, value)]
    rights = [word for name in _RIGHTS for word in ("--cap-add", f"CAP_{name}")]
    libraries = ":".join(program.libraries())
    return [
        *(["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else []),
        *(program.find(), "--cap-drop", "ALL", *rights),
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
