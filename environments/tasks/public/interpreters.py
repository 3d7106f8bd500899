"""Interpreters of their own for libraries that cannot share ours: made once, from a file of pinned hashes."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from environments.errors import InfrastructureFailure
from environments.sandboxes.alone import alone
from environments.tasks.commands import said

_INSTALL_SECONDS = 600.0


async def interpreter(folder: Path, lock: Path, least: tuple[int, int] = (3, 11), python: str | None = None) -> Path:
    """Return a Python that has what `lock` names installed, made below `folder` where it is not there yet.

    `python` is a program to make it of; without one, this Python or one found on this machine of version `least` on.
    Raises InfrastructureFailure with the installer's words."""
    made = _place(folder, lock)
    async with alone(made.with_name(f"{made.name}.lock")):
        if not await asyncio.to_thread((made / "complete").exists):
            await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)
            base = python if python is not None else await asyncio.to_thread(found, least)
            await _install(made, lock, base)
            await asyncio.to_thread((made / "complete").touch)
    return made / "bin" / "python"


def _place(folder: Path, lock: Path) -> Path:
    return folder / f"{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"


async def _install(made: Path, lock: Path, base: str) -> None:
    program, uv = str(made / "bin" / "python"), uv_program()
    if uv is None:
        await said([base, "-m", "venv", str(made)], _INSTALL_SECONDS, "machine")
        install = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    else:
        await said([uv, "venv", "--quiet", "--python", base, str(made)], _INSTALL_SECONDS, "machine")
        install = [uv, "pip", "install", "--quiet", "--python", program]
    await said([*install, "--require-hashes", "-r", str(lock)], _INSTALL_SECONDS, "machine")


def uv_program() -> str | None:
    """Return uv, beside this Python or on the path: it installs in seconds what takes pip minutes."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def found(least: tuple[int, int]) -> str:
    """Return this Python, or one found on this machine, of version `least` on. Raises InfrastructureFailure."""
    if sys.version_info >= least:
        return sys.executable
    names = [f"{least[0]}.{minor}" for minor in range(least[1], least[1] + 6)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    programs = [shutil.which(f"python{name}") for name in names]
    programs += [str(path) for name in names for path in versions.glob(f"{name}.*/bin/python")]
    for program in programs:
        if program is not None and _runs(program):
            return program
    raise InfrastructureFailure("machine", f"no Python {least[0]}.{least[1]} or later is here: name one")


def _runs(program: str) -> bool:
    """Say whether a program is an interpreter: what a manager of versions puts on the path may be none."""
    return subprocess.run([program, "-c", ""], capture_output=True).returncode == 0
