"""The files of the spool: sealed and open segments of CRC-framed records, oldest first by name.

A frame is `length (u32), CRC-32 of the payload (u32), payload`, little-endian. A record counts once its frame is
synced; bytes that a crash left after the last whole frame were never acknowledged."""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<II")
_OPEN = ".open"  # being written
_SEALED = ".sealed"
_TORN = ".torn"  # drained, but did not end in a whole frame: kept for whoever wants to look


@dataclass(frozen=True)
class SpoolFile:
    """A file's content: the payloads of its whole frames, and how many bytes after them are no whole frame."""

    path: Path
    payloads: tuple[bytes, ...]
    torn_bytes: int


def frame(payload: bytes) -> bytes:
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def frame_bytes(payload: bytes) -> int:
    return _HEADER.size + len(payload)


def _payloads(content: bytes) -> Iterator[bytes]:
    position = 0
    while position + _HEADER.size <= len(content):
        length, checksum = _HEADER.unpack_from(content, position)
        start = position + _HEADER.size
        payload = content[start : start + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield payload
        position = start + length


def read_segment(path: Path) -> SpoolFile:
    content = path.read_bytes()
    payloads = tuple(_payloads(content))
    return SpoolFile(path, payloads, len(content) - sum(map(frame_bytes, payloads)))


def has_segments(directory: Path) -> bool:
    """Return whether anything may wait in the directory."""
    return any(path.suffix in (_OPEN, _SEALED) for path in directory.iterdir())


class SegmentFiles:
    """A directory of segments.

    One thread writes (`append`, `seal`), one reads and removes; a segment is passed between them by its name. `append`
    starts a new segment after `segment_bytes`, and after every failure."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._segment_bytes = segment_bytes
        for path in directory.glob(f"*{_OPEN}"):  # its writer is gone
            path.rename(path.with_suffix(_SEALED))
        self._next_number = max((int(path.stem) for path in directory.iterdir()), default=0) + 1
        self._file: int | None = None
        self._path = directory
        self._size = 0

    def sealed(self) -> list[Path]:
        """Return the names of sealed segments, oldest first."""
        return sorted(self._directory.glob(f"*{_SEALED}"))

    def append(self, payloads: Sequence[bytes]) -> None:
        """Append records; they are durable when it returns. After an OSError none of them is in the spool."""
        if self._file is None:
            self._start()
        assert self._file is not None
        rest = content = memoryview(b"".join(map(frame, payloads)))
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            self.seal()
            raise
        self._size += len(content)
        if self._size >= self._segment_bytes:
            self.seal()

    def seal(self) -> None:
        """Pass the segment being written to the reading thread."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._path.rename(self._path.with_suffix(_SEALED))

    def _start(self) -> None:
        self._path, self._size = self._directory / f"{self._next_number:016d}{_OPEN}", 0
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._next_number += 1
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)  # the file's name must survive as well
        finally:
            os.close(directory)

    def remove(self, segment: SpoolFile) -> None:
        if segment.torn_bytes:
            segment.path.rename(segment.path.with_suffix(_TORN))
        else:
            segment.path.unlink()
