"""Our npm packages, built once for all tests of a run."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_CLIENTS = ROOT / "clients"
_NEEDS = {"typescript": ("typescript",), "vscode": ("typescript", "vscode")}
_SOURCES = ("package-lock.json", "package.json", "tsconfig.json", "src/*.ts", "test/*.ts")


def node() -> str:
    """Return the program; skip without one, or fail where ONWARD_REQUIRE_SERVICES=1."""
    found = shutil.which("node")
    if found is None or shutil.which("npm") is None:
        missing = "needs node, at least 20.3, with npm"
        if os.environ.get("ONWARD_REQUIRE_SERVICES") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def built(name: str) -> Path:
    """Return the directory of one of our packages, installed and built, unless that was done from the same sources."""
    node()
    with (_CLIENTS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for each in _NEEDS[name]:
            _build(_CLIENTS / each, [_CLIENTS / needed for needed in _NEEDS[each]])
    return _CLIENTS / name


def _build(directory: Path, made_from: list[Path]) -> None:
    stamp, made = _digest(made_from), directory / "dist" / ".made-from"
    if not made.exists() or made.read_text() != stamp:
        _npm(directory, "ci", "--no-audit", "--no-fund", "--loglevel=error")
        _npm(directory, "run", "build")
        made.write_text(stamp)


def _digest(directories: list[Path]) -> str:
    files = sorted(path for directory in directories for pattern in _SOURCES for path in directory.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _npm(directory: Path, *arguments: str) -> None:
    done = subprocess.run(["npm", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"npm {arguments[0]} in {directory.name}: {done.stdout}{done.stderr}"
