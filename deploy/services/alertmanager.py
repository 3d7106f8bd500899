"""The Alertmanager of docker-compose.monitoring.yml, for a test of its files: `python -m deploy.services.alertmanager`.

Where no image is to be had it is compiled: the Go module of the image's version, which Go holds by its digest, into
build/alertmanager. That takes minutes once; Go keeps what it compiled for the next checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.services.server import ServiceError

DIRECTORY = Path(__file__).parents[2] / "build" / "alertmanager"
VERSION = "v0.28.1"
_MODULE = "github.com/prometheus/alertmanager/cmd"
_PROGRAMS = ("alertmanager", "amtool")


def find() -> Path | None:
    """Return the folder of both programs, if they are there."""
    return DIRECTORY if all((DIRECTORY / name).exists() for name in _PROGRAMS) else None


def get() -> Path:
    """Return the folder of both programs, compiling them where they are not. Raises ServiceError where it cannot be."""
    found = find()
    if found is not None:
        return found
    go = shutil.which("go")
    if go is None:
        raise ServiceError("go is not installed: install it, of version 1.22 or later (https://go.dev/doc/install)")
    made = DIRECTORY.with_name(f"alertmanager.{os.getpid()}")
    command = [go, "install", "-trimpath", *(f"{_MODULE}/{name}@{VERSION}" for name in _PROGRAMS)]
    try:
        done = subprocess.run(
            command, env={**os.environ, "GOBIN": str(made)}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ServiceError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
        shutil.rmtree(DIRECTORY, ignore_errors=True)  # half of it
        made.rename(DIRECTORY)
    except OSError:  # another process was first
        if find() is None:
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return DIRECTORY


def main() -> int:
    try:
        print(get())
    except ServiceError as error:
        print(f"alertmanager: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
