"""Finds bubblewrap: an installed one, else the one that `make sandbox` has unpacked."""

import shutil
from pathlib import Path

from environments.errors import InfrastructureFailure

_UNPACKED = Path(__file__).resolve().parents[3] / "build" / "sandbox" / "root" / "usr"


def find() -> str:
    """Return the program's path. Raises InfrastructureFailure where there is none."""
    found = shutil.which("bwrap") or _unpacked()
    if found is None:
        raise InfrastructureFailure("sandbox", "bubblewrap is not installed: install it, or run `make sandbox`")
    return found


def libraries() -> list[str]:
    """Return where the unpacked one's libraries lie; none for an installed one."""
    return [str(path) for path in _UNPACKED.glob("lib/*-linux-gnu*")] if shutil.which("bwrap") is None else []


def _unpacked() -> str | None:
    program = _UNPACKED / "bin" / "bwrap"
    return str(program) if program.exists() else None
