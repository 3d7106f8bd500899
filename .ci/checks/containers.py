"""A Docker engine with the stack's images, made beside the first parts of a check and at the lowest priority."""

import shlex
from pathlib import Path

from checks.commands import Command, run

_END_S = 180
_TAIL = 3000


class Containers:
    """An engine in a directory of its own, with the images in `kept`; where a usable engine runs already, that one."""

    def __init__(self, directory: Path, kept: Path) -> None:
        self._place, self._kept = shlex.quote(str(directory)), shlex.quote(str(kept))
        self._environment = directory.with_suffix(".env")
        self._log = directory.with_suffix(".log")
        self._making: Command | None = None
        self._is_made: bool | None = None

    def begin(self) -> None:
        """Start the engine and build the images, without waiting for either.

        One image after another: side by side, each would make for itself the layers that they share."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        made = shlex.quote(str(self._environment))
        command = (
            f"set -e; .ci/engine.sh up {self._place} {self._kept} >{made}; . {made}; "
            "COMPOSE_PARALLEL_LIMIT=1 docker compose build"
        )
        self._making = Command(f"nice -n 19 bash -c {shlex.quote(command)}", {}, self._log)

    def wait(self, limit_s: float) -> dict[str, str] | None:
        """Return what the environment of a client must have, once the images are built; None if they could not be."""
        if self._making is not None and self._is_made is None:
            self._is_made = self._making.wait(limit_s) == 0
        if not self._is_made:
            print(self._log.read_text(errors="replace")[-_TAIL:] if self._log.exists() else "no engine was begun")
            return None
        lines = (line.removeprefix("export ") for line in self._environment.read_text().splitlines())
        return {name: value for name, _, value in (line.partition("=") for line in lines) if name}

    def remove(self) -> None:
        """End the building if it still goes on, and the engine with all that ran in it."""
        if self._making is None:
            return
        if self._is_made is None:
            self._making.end()
        run(f".ci/engine.sh remove {self._place}", _END_S)
