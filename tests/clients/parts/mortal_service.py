"""The API in a process of its own, which can be killed at any moment and started again at the same address.

Its log, writer and store are the real ones; only the model is scripted (`api_harness`)."""

import os
import select
import sqlite3
import subprocess
import sys
from pathlib import Path

from ports import free_port

_ROOT = Path(__file__).resolve().parents[3]
_START_S = 240
_PATH = ("", "tests/api/parts", "tests/parts", "tests/contracts/parts", "tests/e2e/parts")


def served_path() -> str:
    """Return the PYTHONPATH of the service's process."""
    return os.pathsep.join(str(_ROOT / folder) for folder in _PATH)


class MortalService:
    """A service on a directory; `url` stays the same over its lives."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()  # none that another is given while the service is down
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> "MortalService":
        """Start it and return when it listens."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._directory), str(self._port)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": served_path()},
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline() if ready else ""
        assert line, "the service did not start"
        self._port = int(line)
        return self

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def outcomes(self) -> list[tuple[str, str]]:
        """Return (id, name) of each outcome in its store, which is there whether the service lives or not."""
        file = self._directory / "store.db"
        if not file.exists():
            return []
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=120)
        try:
            return list(connection.execute("SELECT outcome_id, name FROM outcomes"))
        finally:
            connection.close()


def _serve(directory: Path, port: int) -> None:
    from api_harness import serve

    with serve(directory, port=port) as service:
        sys.stdout.write(service.url.rpartition(":")[2] + "\n")
        sys.stdout.flush()
        sys.stdin.read()  # until whoever started us is gone


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
