"""The folders of tasks in a suite: which there are, what is in them, and their own solutions.

They are in Harbor's format, which whoever runs the tasks reads. Here they are files that belong to a case."""

import os
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from core.errors import ConfigError

_SETTINGS, _INSTRUCTION, _SOLUTION = "task.toml", "instruction.md", "solution"


def is_task(folder: Path) -> bool:
    return (folder / _SETTINGS).is_file() and (folder / _INSTRUCTION).is_file()


def tasks_below(directory: Path) -> list[Path]:
    """Return the folders of tasks in a directory, those within another task left out."""
    found: list[Path] = []
    for path in sorted(directory.rglob(_SETTINGS), key=lambda path: len(path.parts)):
        if is_task(path.parent) and not any(path.is_relative_to(outer) for outer in found):
            found.append(path.parent)
    return found


def digest_of(folder: Path) -> bytes:
    """Return the digest of all files' names and contents. Raises ConfigError for what cannot be read."""
    whole = blake3()
    for path in _files(folder):
        content = os.readlink(path).encode() if path.is_symlink() else _read(path)
        whole.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return bytes(whole.digest())


def instruction_of(folder: Path) -> str:
    """Return what a task asks. Raises ConfigError."""
    return _read(folder / _INSTRUCTION).decode(errors="replace")


def solutions_of(folder: Path) -> dict[str, str]:
    """Return the text files of a task's own solution by their paths within the task. Raises ConfigError."""
    found = {}
    for path in _files(folder / _SOLUTION):
        try:
            text = _read(path).decode()
        except UnicodeDecodeError:
            continue  # a program or a picture: no answer can resemble it
        if text.strip():
            found[str(path.relative_to(folder))] = text
    return found


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts and (path.is_symlink() or path.is_file()):
            yield path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
