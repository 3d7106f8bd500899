"""Debian's bubblewrap for sandboxes, without being installed: `python -m deploy.sandbox` unpacks it into build/sandbox.

A user who may not read that folder cannot be given it: an installed one is better where there is the choice."""

import os
import shutil
import sys
from pathlib import Path

from deploy import debian
from deploy.services.server import ServiceError

DIRECTORY = Path(__file__).parents[1] / "build" / "sandbox"


def get() -> Path:
    """Return an installed program, else the unpacked one. Raises ServiceError where it cannot be had."""
    installed = shutil.which("bwrap")
    if installed is not None:
        return Path(installed)
    if not DIRECTORY.exists():
        made = DIRECTORY.with_name(f"sandbox.{os.getpid()}")
        debian.unpack("bubblewrap", made / "root")
        try:
            made.rename(DIRECTORY)
        except OSError:  # another process was first
            shutil.rmtree(made)
    return DIRECTORY / "root" / "usr" / "bin" / "bwrap"


def main() -> int:
    try:
        print(get())
    except ServiceError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
