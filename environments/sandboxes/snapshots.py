"""Freezes what was done in a sandbox into a layer, which any number of new ones start from.

An installation or an index is made once by commands, and costs the next sandbox nothing: it is mounted, not copied."""

import asyncio
import os
import shutil
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.sandboxes import owners
from environments.sandboxes.bubblewrap.opened import BubblewrapSandbox
from environments.sandboxes.sandbox import SandboxSpec

_COPY = ("cp", "-R", "-P", "--preserve=mode,timestamps,links,xattr")
_KEPT = ("root", "workspace", "home")  # of a sandbox's changed folders; not /tmp, nor shared memory


async def freeze(sandbox: BubblewrapSandbox, directory: Path) -> SandboxSpec:
    """Close a sandbox and return the spec of those that begin where it ended; the new layer lies in `directory`.

    Only the owner of `directory` may enter it, since a layer's files are not to be trusted. Raises
    InfrastructureFailure where the changes cannot be kept."""
    changes = os.dup(sandbox.changes)
    try:
        await sandbox.close()
        layer = await asyncio.to_thread(_keep, changes, directory)
    finally:
        os.close(changes)
    return replace(sandbox.spec, layers=(*sandbox.spec.layers, layer))


def _keep(changes: int, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    made = owners.folder_in_the_making(directory, "layer")
    try:
        for name in _KEPT:
            source = f"/proc/self/fd/{changes}/{name}/upper"
            if os.path.isdir(source):
                _run(*_COPY, source, str(made / name), keep=changes)
        _run("chmod", "-R", "ug-s", str(made))
        layer = directory / f"layer-{uuid.uuid4().hex}"
        made.rename(layer)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return layer


def _run(*command: str, keep: int | None = None) -> None:
    kept = () if keep is None else (keep,)
    done = subprocess.run(command, pass_fds=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureFailure("disk", f"a layer cannot be kept: {done.stderr.strip()[-300:]}")
