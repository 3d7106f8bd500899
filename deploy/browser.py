"""Debian's headless Chromium for the tests of the console, without being installed: `python -m deploy.browser`.

Its packages, with those libraries that the system lacks, are unpacked into build/browser; nobody has to be root."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.services.server import ServiceError

DIRECTORY = Path(__file__).parents[1] / "build" / "browser"
_PACKAGE = "chromium-headless-shell"
_PROGRAM = "usr/lib/chromium/chromium-headless-shell"
_START = '#!/bin/sh\nexport LD_LIBRARY_PATH="{libraries}"\nexec "{program}" "$@"\n'


def find() -> Path | None:
    """Return the unpacked program, else an installed one, else None."""
    ours = DIRECTORY / "chromium"
    if ours.exists():
        return ours
    installed = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    return Path(installed) if installed else None


def get() -> Path:
    """Return the program, downloading it where there is none. Raises ServiceError where it cannot be had."""
    found = find()
    if found is not None:
        return found
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ServiceError(
            "chromium is not installed, and it cannot be unpacked here without apt-get and dpkg: install it"
        )
    made = DIRECTORY.with_name(f"browser.{os.getpid()}")
    packages, root = made / "packages", made / "root"
    packages.mkdir(parents=True)
    _download(packages)
    for package in packages.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(root)])
    shutil.rmtree(packages)
    _make_start(made)
    try:
        made.rename(DIRECTORY)
    except OSError:  # another process was first
        shutil.rmtree(made)
    return DIRECTORY / "chromium"


def _download(directory: Path) -> None:
    """Download the packages that an installation would bring.

    If that fails, update the list of packages, where we may, and try again: an old list names files that are gone."""
    if subprocess.run(_downloads(), cwd=directory, stdout=subprocess.DEVNULL, check=False).returncode:
        if os.geteuid() == 0:
            _run(["apt-get", "update", "-qq"])
        _run(_downloads(), directory)


def _downloads() -> list[str]:
    plan = ["apt-get", "install", "--simulate", "--no-install-recommends", "-q", _PACKAGE]
    planned = subprocess.run(plan, capture_output=True, text=True, check=False).stdout
    missing = re.findall(r"^Inst (\S+)", planned, re.MULTILINE)
    return ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *(missing or [_PACKAGE])]


def _make_start(made: Path) -> None:
    inside = [path.relative_to(made) for path in sorted((made / "root").glob("usr/lib/*-linux-gnu*"))]
    folders = [DIRECTORY / path for path in inside]
    folders += [DIRECTORY / path.relative_to(made) for path in sorted((made / "root").glob("usr/lib/*/pulseaudio"))]
    start = made / "chromium"
    program = DIRECTORY / "root" / _PROGRAM
    start.write_text(_START.format(libraries=":".join(map(str, folders)), program=program))
    start.chmod(0o755)


def _run(command: list[str], directory: Path | None = None) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-500:]}")


def main() -> int:
    try:
        print(get())
    except ServiceError as error:
        print(f"browser: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
