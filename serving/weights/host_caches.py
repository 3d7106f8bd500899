"""The caches of a host: versions that it rebuilt, and files that it gives to other hosts."""

from pathlib import Path

from serving.weights.cache import VersionCache
from serving.weights.sharing.kept_files import KeptFiles

VERSIONS, FILES = "weights", "files"
"""Their folders below the host's own."""


def forget(directory: Path, digest: str) -> None:
    """Remove the version with this digest from the caches in `directory`. Any number of processes may share them."""
    VersionCache(directory / VERSIONS, 1).forget(digest)
    KeptFiles(directory / FILES, 1).forget(digest)
