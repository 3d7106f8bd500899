"""Files that are whole or absent: durable before they have their name, and behind their own digest."""

import os
from pathlib import Path
from typing import Final

from blake3 import blake3

from core.errors import CheckpointError

PARTIAL: Final = ".partial"
DIGEST_BYTES: Final = 32


def write_sealed(path: Path, data: bytes) -> None:
    """Write a file that is durable when this returns. Raises OSError naming the file, of which then nothing is left."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            file.write(blake3(data).digest() + data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise named(error, path) from error


def read_sealed(path: Path) -> bytes:
    """Return what was written. Raises CheckpointError naming a file that is missing or corrupt."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    if blake3(data).digest() != digest:
        raise CheckpointError(f"{path}: corrupt (its digest is not the recorded one)")
    return data


def named(error: OSError, path: Path) -> OSError:
    """Return the error with the file's name: that of a write has none."""
    return OSError(error.errno, error.strerror, str(path))


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
