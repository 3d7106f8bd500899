"""The folders of tasks in a suite: which there are, what is in them, and their own solutions.

They are in Harbor's format, which whoever runs the tasks reads. Here they are files that belong to a case."""

import codecs
import os
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from core.errors import ConfigError

PARTIAL = ".partial"
"""The suffix of a folder that is still being written, and is not read yet."""
_SETTINGS, _INSTRUCTION, _SOLUTION = "task.toml", "instruction.md", "solution"
_MOST_BYTES = 4 << 20  # of a solution's texts: each of their words is held in memory


def is_task(folder: Path) -> bool:
    return (folder / _SETTINGS).is_file() and (folder / _INSTRUCTION).is_file()


def tasks_below(directory: Path) -> list[Path]:
    """Return the folders of tasks in a directory, those within another task left out."""
    found: dict[Path, None] = {}
    for path in sorted(directory.rglob(_SETTINGS), key=lambda path: len(path.parts)):
        is_whole = not any(part.endswith(PARTIAL) for part in path.relative_to(directory).parts)
        if is_whole and is_task(path.parent) and found.keys().isdisjoint(path.parent.parents):
            found[path.parent] = None
    return list(found)


def digest_of(folder: Path) -> bytes:
    """Return the digest of all files' names and contents. Raises ConfigError for what cannot be read."""
    whole = blake3()
    for path in _files(folder):
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else _read(path)
        whole.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return bytes(whole.digest())


def instruction_of(folder: Path) -> str:
    """Return what a task asks. Raises ConfigError."""
    return _read(folder / _INSTRUCTION).decode(errors="replace")


def solutions_of(folder: Path) -> dict[str, str]:
    """Return the text files of a task's own solution by their paths within the task.

    Raises ConfigError, also for a link that leads out of the task, and for more than 4 MiB of text."""
    found, left = {}, _MOST_BYTES
    for path in _files(folder / _SOLUTION):
        if path.is_symlink() and not _is_file_within(path, folder):
            continue  # it leads to a folder, or to nothing
        content = _read(path, left + 1)
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(content, final=len(content) <= left)
        except UnicodeDecodeError:
            continue  # a program or a picture: no answer can resemble it
        if len(content) > left:
            raise ConfigError(f"{folder / _SOLUTION}: its texts have more than {_MOST_BYTES >> 20} MiB")
        left -= len(content)
        if text.strip():
            found[str(path.relative_to(folder))] = text
    return found


def _is_file_within(link: Path, folder: Path) -> bool:
    target = Path(os.path.realpath(link))
    if not target.is_relative_to(os.path.realpath(folder)):
        raise ConfigError(f"{link}: the link leads out of the task's folder")
    return target.is_file()


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts and (path.is_symlink() or path.is_file()):
            _require_text(path)
            yield path


def _require_text(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{os.fsencode(path)!r}: its name is no UTF-8") from error


def _read(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
