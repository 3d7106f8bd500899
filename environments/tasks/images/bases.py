"""What stands for the base images of Dockerfiles where no engine can pull them, as whoever asks for them names it."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from environments.errors import InfrastructureFailure
from environments.tasks.images import machine

MACHINE = "machine"

# An image of Python has programs of these names; a Debian of its own has python3, and forbids pip to write.
_AS_AN_IMAGE_OF_PYTHON = """\
cd /usr/local/bin || { mkdir -p /usr/local/bin && cd /usr/local/bin; }
command -v python >/dev/null || ln -s "$(command -v python3)" python
command -v pip >/dev/null || { printf '#!/bin/sh\\nexec python3 -m pip "$@"\\n' >pip && chmod 755 pip; }
"""


@dataclass(frozen=True)
class Base:
    """An unpacked image to build upon, and a command that makes it look more like the one it stands for."""

    name: str
    digest: str
    root: Path
    setup: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Bases:
    """References of images, as patterns (`python:3.*-slim`), to `machine` or to the folder of an unpacked image."""

    def __init__(self, stands_for: Mapping[str, str], folder: Path) -> None:
        """Take what stands for which images; this machine's programs are gathered below `folder`."""
        self._stands_for, self._folder = dict(stands_for), folder

    def has(self, reference: str) -> bool:
        return self._found(reference) is not None

    def named(self, reference: str) -> Base:
        """Return what stands for an image.

        Raises InfrastructureFailure for one that no pattern matches, or whose folder is not there."""
        found = self._found(reference)
        if found is None:
            known = ", ".join(self._stands_for) or "none"
            raise InfrastructureFailure(
                "image",
                f"{reference} cannot be pulled: there is no Docker engine here, and nothing is named "
                f"that stands for it (named are: {known})",
            )
        if found == MACHINE:
            root = machine.root(self._folder)
            return Base(reference, machine.digest(), root, _AS_AN_IMAGE_OF_PYTHON, {"PIP_BREAK_SYSTEM_PACKAGES": "1"})
        root = Path(found)
        if not (root / "bin").exists():
            raise InfrastructureFailure("image", f"{root} is named for {reference}: no unpacked image there")
        return Base(reference, blake3(str(root.resolve()).encode()).hexdigest(), root)

    def _found(self, reference: str) -> str | None:
        short = reference.split("@")[0].removeprefix("docker.io/").removeprefix("library/")
        short = short if ":" in short.rsplit("/", 1)[-1] else f"{short}:latest"
        matching = (folder for pattern, folder in self._stands_for.items() if fnmatch.fnmatchcase(short, pattern))
        return next(matching, None)
