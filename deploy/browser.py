"""Debian's headless Chromium for the tests of the console, without being installed: `python -m deploy.browser`.

Its packages, with those libraries that the system lacks, are unpacked into build/browser; nobody has to be root."""

import os
import shutil
import sys
from pathlib import Path

from deploy import debian
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
    made = DIRECTORY.with_name(f"browser.{os.getpid()}")
    debian.unpack(_PACKAGE, made / "root")
    _make_start(made)
    try:
        made.rename(DIRECTORY)
    except OSError:  # another process was first
        shutil.rmtree(made)
    return DIRECTORY / "chromium"


def _make_start(made: Path) -> None:
    inside = [path.relative_to(made) for path in debian.libraries(made / "root")]
    folders = [DIRECTORY / path for path in inside]
    folders += [DIRECTORY / path.relative_to(made) for path in sorted((made / "root").glob("usr/lib/*/pulseaudio"))]
    start = made / "chromium"
    program = DIRECTORY / "root" / _PROGRAM
    start.write_text(_START.format(libraries=":".join(map(str, folders)), program=program))
    start.chmod(0o755)


def main() -> int:
    try:
        print(get())
    except ServiceError as error:
        print(f"browser: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
