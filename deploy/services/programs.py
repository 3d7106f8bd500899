"""The programs that the services consist of: found, or installed from the system's packages where we may."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from deploy import debian
from deploy.services.server import ServiceError

PACKAGES = {"java": "default-jre-headless", "mvn": "maven", "redis-server": "redis-server", "pg_ctl": "postgresql"}


def find(program: str) -> str | None:
    """Find a program on the path, or in Debian's folder of the newest PostgreSQL, which is off the path."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]))
    return shutil.which(program) or (str(versions[-1]) if versions else None)


def path_of(program: str) -> str:
    """Return the program's path. Raises ServiceError when it is not installed."""
    found = find(program)
    if found is None:
        raise ServiceError(f"{program} is not installed")
    return found


def require(programs: Iterable[str]) -> None:
    """Install what is missing. Raises ServiceError naming the packages where we may not."""
    missing = [PACKAGES[program] for program in programs if find(program) is None]
    if not missing:
        return
    apt_get = shutil.which("apt-get")
    if apt_get is None or os.geteuid() != 0:
        raise ServiceError(f"not installed: {', '.join(missing)} (names of Debian's packages); install them first")
    print(f"installing {', '.join(missing)}", flush=True)
    install = [apt_get, "install", "-y", "-qq", "--no-install-recommends", *debian.WAITS, *missing]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(install, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
        debian.update()
        subprocess.run(install, env=environment, stdout=subprocess.DEVNULL, check=True)
