"""Reads and writes files as a program inside would: links lead only where the sandbox's own files are."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO


def read(path: str, to: int, most_bytes: int) -> None:
    """Copy a regular file's content to a descriptor. Raises OSError, EFBIG for more than `most_bytes`."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(file).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    left = most_bytes
    while piece := os.read(file, 1 << 16):
        left -= len(piece)
        if left < 0:
            raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", path)
        _write_all(to, piece)


def write(path: str, source: int, *, executable: bool) -> None:
    """Write a file from a descriptor, with the folders that it needs."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    while piece := os.read(source, 1 << 16):
        _write_all(file, piece)
    if executable:
        os.fchmod(file, 0o755)
    os.close(file)


def unpack(source: int, target: str) -> None:
    """Unpack a tar stream below `target`. A link in the way is replaced, never followed, the target itself included."""
    import tarfile

    _make_folder(target)
    with open(source, "rb", closefd=False) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            place = os.path.join(target, member.name)
            if member.isdir():
                _make_folder(place)
            elif member.issym():
                _clear(place)
                os.symlink(member.linkname, place)
            else:
                content = archive.extractfile(member)
                assert content is not None, f"{member.name} is no file"
                _clear(place)
                _create(place, content, int(member.get_info()["mode"]))  # type: ignore[arg-type]  # a number


def remove(workdir: str, paths: Sequence[str], links: Mapping[str, str]) -> None:
    """Remove files, and folders that are empty by then, but no link that leads where `links` says."""
    for path in sorted(paths, reverse=True):  # what lies in a folder comes before it
        place = os.path.join(workdir, path)
        try:
            mode = os.lstat(place).st_mode
            if stat.S_ISDIR(mode):
                os.rmdir(place)
            elif not (stat.S_ISLNK(mode) and os.readlink(place) == links.get(path)):
                os.unlink(place)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


def _make_folder(place: str) -> None:
    if os.path.islink(place) or not os.path.isdir(place):
        _clear(place)
        os.makedirs(place)


def _clear(place: str) -> None:
    try:  # noqa: SIM105 - contextlib is not imported inside
        os.unlink(place)
    except FileNotFoundError:
        pass


def _create(place: str, content: IO[bytes], mode: int) -> None:
    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    while piece := content.read(1 << 16):
        _write_all(file, piece)
    os.fchmod(file, mode & 0o777)
    os.close(file)


def _write_all(to: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(to, piece) :]
