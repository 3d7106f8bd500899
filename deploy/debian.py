"""Unpacks Debian packages into a folder, with those libraries that the system lacks; nobody has to be root."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from deploy.services.server import ServiceError

_LONGEST_WAIT_S = 600
WAITS = ("-o", f"DPkg::Lock::Timeout={_LONGEST_WAIT_S}")
"""Has `apt-get install` wait for who installs something else."""


def update() -> None:
    """Update the list of packages; where somebody else does, wait for that, but not for ever. Raises ServiceError."""
    command, environment = ["apt-get", "update", "-qq"], {**os.environ, "LC_ALL": "C"}
    until_s = time.monotonic() + _LONGEST_WAIT_S
    while (done := subprocess.run(command, env=environment, capture_output=True, text=True, check=False)).returncode:
        if "Could not get lock" not in done.stderr or time.monotonic() > until_s:
            raise ServiceError(f"apt-get update failed: {done.stderr.strip()[-500:]}")
        time.sleep(1)


def unpack(package: str, root: Path) -> None:
    """Download a package and what it needs, and unpack all of it below `root`. Raises ServiceError."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ServiceError(
            f"{package} is not installed, and it cannot be unpacked here without apt-get and dpkg: install it"
        )
    packages = root.with_name(f"{root.name}.packages")
    packages.mkdir(parents=True)
    _download(package, packages)
    for archive in packages.glob("*.deb"):
        _run(["dpkg", "-x", str(archive), str(root)])
    shutil.rmtree(packages)


def libraries(root: Path) -> list[Path]:
    """Return the folders of libraries below an unpacked root."""
    return sorted(root.glob("usr/lib/*-linux-gnu*"))


def _download(package: str, directory: Path) -> None:
    """Download the packages that an installation would bring.

    If that fails, update the list of packages, where we may, and try again: an old list names files that are gone."""
    if subprocess.run(_downloads(package), cwd=directory, stdout=subprocess.DEVNULL, check=False).returncode:
        if os.geteuid() == 0:
            update()
        _run(_downloads(package), directory)


def _downloads(package: str) -> list[str]:
    plan = ["apt-get", "install", "--simulate", "--no-install-recommends", "-q", package]
    planned = subprocess.run(plan, capture_output=True, text=True, check=False).stdout
    missing = re.findall(r"^Inst (\S+)", planned, re.MULTILINE)
    return ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *(missing or [package])]


def _run(command: list[str], directory: Path | None = None) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServiceError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-500:]}")
