"""Files of published versions that this host has fetched, by their checksums: DIRECTORY/DIGEST OF VERSION/CHECKSUM.

They are links where the file system has them, so that a file takes no more room while the version itself is cached."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from core.model.weights_digest import checksum_of
from serving.weights.cache import link_or_copy
from serving.weights.deltas.manifest import File
from serving.weights.file_turns import holder_of, turn_at

_FETCHING, _PARTIAL = ".fetching-", ".partial-"


class KeptFiles:
    """Keeps the files of the `keep` versions that were fetched last. Any number of processes may share a directory."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory, keep

    @contextmanager
    def fetching(self, checksum: str, who: str) -> Iterator[None]:
        """Say that `who` fetches a file, once no other process of this host does."""
        with turn_at(self._directory / f"{_FETCHING}{checksum}", who):
            yield

    def fetcher(self, checksum: str) -> str | None:
        """Return who fetches a file at this moment."""
        return holder_of(self._directory / f"{_FETCHING}{checksum}")

    def find(self, checksum: str) -> Path | None:
        return next(self._directory.glob(f"[!.]*/{checksum}"), None)

    def lend(self, file: File, target: Path) -> bool:
        """Put a file at `target`, verified; return False where it is not kept, or damaged, and then forgotten."""
        kept = self.find(file.checksum)
        if kept is None:
            return False
        with suppress(FileNotFoundError):  # another process lets it go in this moment
            link_or_copy(kept, target)
            if checksum_of(target) == file.checksum:
                return True
            kept.unlink()
        target.unlink(missing_ok=True)
        return False

    def keep(self, digest: str, file: File, verified: Path) -> None:
        """Keep a verified file of the version with this digest."""
        home = self._directory / digest
        home.mkdir(parents=True, exist_ok=True)
        partial = self._directory / f"{_PARTIAL}{uuid4().hex}"
        link_or_copy(verified, partial)
        os.replace(partial, home / file.checksum)
        partial.unlink(missing_ok=True)  # where both were links to one file, renaming does nothing
        os.utime(home)
        self._evict()

    def _evict(self) -> None:
        homes = [home for home in self._directory.iterdir() if not home.name.startswith(".")]
        for home in sorted(homes, key=lambda home: home.stat().st_mtime_ns)[: -self._keep]:
            shutil.rmtree(home, ignore_errors=True)
