"""The files of a backup that are copied as they are: those of the service's directory, and blobs."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from core.blobs import FsspecBlobs
from onward.directory.layout import Layout

Seen = Callable[[int], object]
"""Told of bytes that were copied."""

JOURNALS: Final = "journal-*"


class Vanished(Exception):
    """A file that belongs together with others went while they were copied: the copy must be made again."""


def files_of_directory(layout: Layout) -> list[Path]:
    """Return the paths, below the directory, of what cannot be made again: settings, journals, checkpoints, spools.

    Log, store and blobs are copied in other ways; caches, what rollouts made, whose journal
    no other program can open, and what running processes say of themselves are left out."""
    apart = {layout.log, layout.store, layout.blobs, layout.cache, layout.model_check, layout.lock, layout.address}
    apart |= {layout.audit_head.parent}  # of the trail as it is when it is copied, which may be later than the store
    apart |= {layout.apis, layout.ready("any").parent, layout.host("any").parent, layout.rescored}
    apart |= {layout.rollouts, layout.estimated, layout.mined, layout.starts}
    apart |= {Path(f"{database}{suffix}") for database in (layout.log, layout.store) for suffix in ("-wal", "-shm")}
    found: list[Path] = []
    for top in sorted(layout.root.iterdir()):
        if top in apart:
            continue
        below = sorted(top.rglob("*")) if top.is_dir() else [top]
        found += [path.relative_to(layout.root) for path in below if path.is_file() and not path.is_symlink()]
    return found


def copy_files(root: Path, names: Iterable[Path], target: Path, seen: Seen) -> None:
    """Copy files below `root` to the same places below `target`. Raises Vanished."""
    for name in names:
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(root / name, to)
        except FileNotFoundError as error:
            raise Vanished(str(name)) from error
        seen(to.stat().st_size)


def copy_blobs(blobs: FsspecBlobs, paths: Iterable[str], target: Path, seen: Seen) -> None:
    """Copy blobs to files below `target`, the newest first; those that were discarded meanwhile are left out.

    The weights of versions that will not serve again are discarded at any time; whether what must serve was copied is
    for the caller to check."""
    copies = FsspecBlobs(target)
    for path in sorted(paths, reverse=True):
        to = target / path
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            if blobs.is_local:
                copies.put_file(path, blobs.local(path))
            else:
                blobs.local(path, to)
        except FileNotFoundError:
            to.unlink(missing_ok=True)  # it may have gone in the middle
            continue
        seen(to.stat().st_size)
