"""Our npm packages, built once for all tests of a run, by the commands that their pages show."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from shown_examples import AS_SHOWN, commands, of_test

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


def shown(name: str, places: Mapping[str, Path] = {}) -> list[tuple[Path, list[str]]]:
    """Return the commands of a package's page, each with the directory that it is run in.

    `places`: where on this machine the words are that the reader replaces."""
    here, found = ROOT, []
    for words in commands(of_test(AS_SHOWN, f"clients/{name}/README.md"), places):
        if words[0] == "cd":
            here = (here / words[1]).resolve()
        else:
            found.append((here, words))
    return found


def run(directory: Path, command: Sequence[str]) -> None:
    quiet = {
        f"npm_config_{name}": value for name, value in (("audit", "false"), ("fund", "false"), ("loglevel", "error"))
    }
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **quiet}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)} in {directory.name}: {done.stdout}{done.stderr}"


def _build(directory: Path, made_from: list[Path]) -> None:
    stamp, made = _digest(made_from), directory / "dist" / ".made-from"
    if not made.exists() or made.read_text() != stamp:
        for where, command in shown(directory.name):
            if where == directory and command[-1] != "package":
                run(where, command)
        made.write_text(stamp)


def _digest(directories: list[Path]) -> str:
    files = sorted(path for directory in directories for pattern in _SOURCES for path in directory.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
