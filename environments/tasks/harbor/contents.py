"""The files of a task's folder, and the digest of all of them."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from environments.errors import TaskError

_MOST_BYTES = 256 << 20  # of all files: what is copied into an image is read into memory


def digest_of(folder: Path) -> str:
    """Return the digest of everything in a folder: each file's path, content and whether it is executable.

    Raises TaskError for a link that leads out of the folder, for what is neither file, folder nor link, and for more
    than 256 MiB. Whoever reads anything of a stranger's folder asks for this first."""
    whole, left = blake3(), _MOST_BYTES
    for path in files_below(folder):
        left -= path.lstat().st_size
        if left < 0:
            raise TaskError(
                f"{folder}: its files have more than {_MOST_BYTES >> 20} MiB: let its Dockerfile fetch them"
            )
        name = path.relative_to(folder).as_posix()
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        kind = "link" if path.is_symlink() else "program" if path.stat().st_mode & stat.S_IXUSR else "file"
        whole.update(f"{kind} {len(name.encode())} {name} {len(content)}\n".encode())
        whole.update(content)
    return str(whole.hexdigest())


def files_below(folder: Path) -> Iterator[Path]:
    """Yield a folder's files and links in the order of their names, compiled Python left out.

    Raises TaskError."""
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        if path.is_symlink():
            if not path.resolve().is_relative_to(folder.resolve()):
                raise TaskError(f"{path}: the link leads out of the task's folder")
        elif path.is_dir():
            continue
        elif not path.is_file():
            raise TaskError(f"{path}: neither a file nor a folder")
        yield path
