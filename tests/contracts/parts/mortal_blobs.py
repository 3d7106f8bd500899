"""Blobs whose process ends amid its writes."""

from collections.abc import Callable
from pathlib import Path

from core.blobs import FsspecBlobs


class Died(Exception):
    """The process ended here."""


class MortalBlobs(FsspecBlobs):
    """Ends the process before its write number `lives`."""

    lives = 1_000_000

    def put(self, path: str, data: bytes) -> None:
        self._live()
        super().put(path, data)

    def put_file(self, path: str, source: Path, see: Callable[[memoryview], None] | None = None) -> None:
        self._live()
        super().put_file(path, source, see)

    def delete(self, path: str) -> None:
        self._live()
        super().delete(path)

    def _live(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Died
