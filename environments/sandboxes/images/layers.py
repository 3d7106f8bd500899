"""Unpacks one layer of an image over those before it.

Paths are followed within the image's own root only: a link of an earlier layer leads nowhere else. Everything belongs
to who unpacks it, since a sandbox has one user; devices are left out, since a sandbox has its own."""

import os
import shutil
import tarfile
from pathlib import Path
from typing import IO

from environments.sandboxes.images.archive import BadImage

_REMOVED, _EMPTIED = ".wh.", ".wh..wh..opq"
_MOST_LINKS = 40  # that one path may lead over, as in the kernel
_MOST_FOLDERS = 256  # in one another: what removes them again calls itself for each


def unpack(layer: IO[bytes], root: Path) -> None:
    """Unpack a layer's tar below `root`. Raises BadImage for one that leads outside."""
    fresh: set[Path] = set()
    with tarfile.open(fileobj=layer, mode="r|") as members:
        for member in members:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if not parts:
                continue
            place = inside(root, parts[:-1]) / _safe(parts[-1])
            if parts[-1] == _EMPTIED:
                _empty(place.parent, fresh)
            elif parts[-1].startswith(_REMOVED):
                _remove(place.with_name(_safe(parts[-1].removeprefix(_REMOVED))))
            else:
                _add(members, member, place, root)
                fresh.add(place)


def inside(root: Path, parts: list[str]) -> Path:
    """Return where a path leads within `root`, with every link followed there, and missing folders made."""
    waiting, place, links = list(reversed(parts)), root, 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = place.parent if place != root else root
            continue
        place /= part
        if place.is_symlink():
            links += 1
            if links > _MOST_LINKS:
                raise BadImage(f"{'/'.join(parts)} leads in circles")
            target = os.readlink(place)
            place = root if target.startswith("/") else place.parent
            waiting += reversed(target.split("/"))
        elif len(place.parts) - len(root.parts) > _MOST_FOLDERS:
            raise BadImage(f"more than {_MOST_FOLDERS} folders lie in one another")
        elif not place.is_dir():
            place.unlink(missing_ok=True)
            place.mkdir()
    return place


def _safe(name: str) -> str:
    if name in ("", ".", ".."):
        raise BadImage(f"{name!r} names no file")
    return name


def _add(members: tarfile.TarFile, member: tarfile.TarInfo, place: Path, root: Path) -> None:
    if member.isdir():
        if place.is_symlink() or not place.is_dir():
            _remove(place)
            place.mkdir()
        # At once: later a link may stand in the path. Who unpacks goes on writing there, whatever its mode says.
        place.chmod(_mode(member) & 0o1777 | 0o700)
        return
    if member.issparse():
        raise BadImage(f"{member.name} has holes, which would be written out")
    _remove(place)
    if member.issym():
        place.symlink_to(member.linkname)
    elif member.islnk():
        parts = [part for part in member.linkname.split("/") if part not in ("", ".")]
        other = inside(root, parts[:-1]) / _safe(parts[-1])
        os.link(other, place, follow_symlinks=False)
    elif content := members.extractfile(member) if member.isreg() else None:
        with place.open("xb") as file:
            shutil.copyfileobj(content, file)
        place.chmod(_mode(member) & 0o777)
        os.utime(place, (member.mtime, member.mtime))


def _mode(member: tarfile.TarInfo) -> int:
    return int(member.get_info()["mode"])  # type: ignore[arg-type]  # a number, as tarfile makes it


def _empty(folder: Path, fresh: set[Path]) -> None:
    """Remove what earlier layers put into a folder."""
    for place in folder.iterdir():
        if place not in fresh and not any(place in each.parents for each in fresh):
            _remove(place)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
