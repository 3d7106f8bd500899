"""A real VS Code, in the browser, for the tests of our extension: `python -m deploy.ide`.

It is code-server from npm's registry, in build/ide: the package is held by its digest, and what it needs by the lock
files within it. Its install scripts, which fetch programs from elsewhere, are left out; its native modules are compiled
here, against the headers of the installed node."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from deploy.services.server import ServiceError

DIRECTORY = Path(__file__).parents[1] / "build" / "ide"
VERSION = "4.100.3"
"""Code 1.100.3: the newest for node 20."""
_SHA512 = (
    "abf161d833b10913610bf5a21bfeac02148a9e3ed90024d505a79e67ead68e89"
    "7fff41426e5fea835967e5e719f7d8d871fa8cc59640c9670df98048a340e0a4"
)
_NODE = "v20."
_CI = (
    "npm",
    "ci",
    "--omit=dev",
    "--ignore-scripts",
    "--legacy-peer-deps",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
)
_NEEDED = ("@vscode/spdlog", "native-watchdog", "@parcel/watcher")
_WANTED = ("node-pty",)
"""Its terminal; what it compiles works, and then its last script may fail."""


def find() -> Path | None:
    """Return the program that node runs, if it is installed."""
    entry = DIRECTORY / "out" / "node" / "entry.js"
    return entry if entry.exists() else None


def get() -> Path:
    """Return the program, installing it where it is not. Raises ServiceError where it cannot be had."""
    found = find()
    if found is not None:
        return found
    _check_programs()
    made = DIRECTORY.with_name(f"ide.{os.getpid()}")
    made.mkdir(parents=True)
    try:
        _unpack(made)
        _install(made)
        made.rename(DIRECTORY)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return DIRECTORY / "out" / "node" / "entry.js"


def _check_programs() -> None:
    missing = [program for program in ("node", "npm", "make", "g++") if shutil.which(program) is None]
    if missing:
        raise ServiceError(f"{', '.join(missing)}: not installed")
    version = _run(["node", "--version"], DIRECTORY.parents[1]).strip()
    if not version.startswith(_NODE):
        raise ServiceError(f"code-server {VERSION} needs node 20, and this is {version}")


def _unpack(directory: Path) -> None:
    package = directory / _run(["npm", "pack", "--silent", f"code-server@{VERSION}"], directory).strip()
    digest = hashlib.sha512(package.read_bytes()).hexdigest()
    if digest != _SHA512:
        raise ServiceError(f"code-server {VERSION} has the digest {digest}, not the expected one")
    with tarfile.open(package) as archive:
        archive.extractall(directory, filter="data")
    package.unlink()
    for path in (directory / "package").iterdir():
        path.rename(directory / path.name)


def _install(directory: Path) -> None:
    editor = directory / "lib" / "vscode"
    for folder in (directory, editor, editor / "extensions"):
        _run([*_CI], folder)
    _run(["npm", "rebuild", "argon2"], directory)
    for module in _NEEDED:
        _run(["npm", "rebuild", module], editor)
    for module in _WANTED:
        subprocess.run(["npm", "rebuild", module], cwd=editor, capture_output=True, check=False)


def _run(command: list[str], directory: Path) -> str:
    """Run a command and return what it wrote. Raises ServiceError with the end of what it said."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceError(f"{' '.join(command[:3])} failed: {(done.stdout + done.stderr).strip()[-800:]}")
    return done.stdout


def main() -> int:
    try:
        print(get())
    except ServiceError as error:
        print(f"ide: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
