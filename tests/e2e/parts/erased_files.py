"""What is left of a word in files."""

import re
from contextlib import suppress
from pathlib import Path

import zstandard
from at_rest import bytes_there, files_below


def files_with(directory: Path, word: str) -> list[str]:
    """Return the files below a directory that have a word, as they lie there or unpacked."""
    return sorted(
        str(path.relative_to(directory)) for path in files_below(directory) if word.encode() in bytes_of(path)
    )


def bytes_of(path: Path) -> bytes:
    raw = bytes_there(path)
    for found in re.finditer(re.escape(zstandard.FRAME_HEADER), raw):
        with suppress(zstandard.ZstdError):  # four such bytes begin no frame
            raw += zstandard.ZstdDecompressor().decompressobj().decompress(raw[found.start() :])
    return raw
