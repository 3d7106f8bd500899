"""Files of published versions that this host has fetched, by their checksums: DIRECTORY/DIGEST OF VERSION/CHECKSUM.

They are links where the file system has them, so that a file takes no more room while the version itself is cached."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from core.model.weights_digest import checksum_of
from serving.weights.cache import link_or_copy, used_at
from serving.weights.deltas.manifest import File
from serving.weights.file_turns import holder_of, turn_at

_FETCHING, _PARTIAL = ".fetching-", ".partial-"
_SETTLED_S = 600.0  # a file is linked or copied by then


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
        home, partial = self._directory / digest, self._directory / f"{_PARTIAL}{uuid4().hex}"
        home.mkdir(parents=True, exist_ok=True)
        link_or_copy(verified, partial)
        with suppress(FileNotFoundError):  # another process lets the version go in this moment
            os.replace(partial, home / file.checksum)
            os.utime(home)
        partial.unlink(missing_ok=True)  # where both were links to one file, renaming does nothing
        self._evict()

    def forget(self, digest: str) -> None:
        """Keep nothing of a version any more; who is being given a file of it gets it whole."""
        shutil.rmtree(self._directory / digest, ignore_errors=True)

    def _evict(self) -> None:
        for partial in self._directory.glob(f"{_PARTIAL}*"):
            if time.time() - used_at(partial) / 1e9 > _SETTLED_S:  # its process has died
                partial.unlink(missing_ok=True)
        homes = [home for home in self._directory.iterdir() if not home.name.startswith(".")]
        for home in sorted(homes, key=used_at)[: -self._keep]:
            shutil.rmtree(home, ignore_errors=True)
