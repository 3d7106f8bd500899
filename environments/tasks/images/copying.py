"""What a COPY of a Dockerfile puts into an image: files of the context, packed so that equal files are equal bytes."""

import io
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path

from environments.errors import TaskError

# Archives of other kinds (zip, wheels) know no earlier time than 1980.
_MADE_AT = 315_619_200


@dataclass(frozen=True)
class Copied:
    """One COPY: files to unpack below `target`, or the content of one file that becomes `target` itself.

    `name` is the one file's, which it keeps where `target` turns out to be a folder; None for files to unpack."""

    target: str
    content: bytes
    name: str | None = None
    permissions: int = 0o644


def gather(context: Path, sources: list[str], target: str, permissions: int | None) -> Copied:
    """Pack the sources for a target, which is absolute and ends with a slash where a folder is meant.

    Raises TaskError for a source that is not there, or that leads out of the context."""
    found = [path for source in sources for path in _matching(context, source)]
    if len(found) == 1 and len(sources) == 1 and found[0].is_file() and not target.endswith("/"):
        only = found[0]
        return Copied(
            target, only.read_bytes(), only.name, permissions if permissions is not None else _permissions(only)
        )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in found:
            _pack(archive, path, "" if path.is_dir() else path.name, permissions)
    return Copied(target, packed.getvalue())


def _matching(context: Path, source: str) -> list[Path]:
    relative = source.lstrip("/")
    paths = [context] if relative in (".", "", "./") else sorted(context.glob(relative))
    if not paths:
        raise TaskError(f"COPY {source}: not in the environment's folder")
    for path in paths:
        if not path.resolve().is_relative_to(context.resolve()):
            raise TaskError(f"COPY {source}: leads out of the environment's folder")
    return paths


def _pack(archive: tarfile.TarFile, path: Path, name: str, permissions: int | None) -> None:
    if path.is_dir() and not path.is_symlink():
        if name:
            folder = tarfile.TarInfo(name).replace(mode=0o755, mtime=_MADE_AT)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        for inner in sorted(path.iterdir()):
            _pack(archive, inner, f"{name}/{inner.name}" if name else inner.name, permissions)
        return
    if path.is_symlink():
        link = tarfile.TarInfo(name).replace(mtime=_MADE_AT, linkname=str(path.readlink()))
        link.type = tarfile.SYMTYPE
        archive.addfile(link)
        return
    content = path.read_bytes()
    chosen = permissions if permissions is not None else _permissions(path)
    member = tarfile.TarInfo(name).replace(mode=chosen, mtime=_MADE_AT)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _permissions(path: Path) -> int:
    return 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
