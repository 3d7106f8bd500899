"""Files of many values: msgpack, each behind its length, under zstd, with a digest of the whole file.

4 bytes, big-endian    the length of the value that follows
that many bytes        a msgpack value
…                      until the end"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, TypeVar

import msgspec
import zstandard
from blake3 import blake3

from core.blobs import pieces_of
from core.errors import ConfigError

T = TypeVar("T")
_LENGTH_BYTES: Final = 4
_LEVEL: Final = 3
_encode = msgspec.msgpack.Encoder().encode


class PieceWriter:
    """Writes one file; it is durable after the `with` block."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb")
        self._out = zstandard.ZstdCompressor(level=_LEVEL).stream_writer(self._file, closefd=False)

    def __enter__(self) -> "PieceWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._file:
            self._out.close()  # type: ignore[no-untyped-call]  # the library has no types

    def write(self, value: Any) -> None:
        data = _encode(value)
        self._out.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def read_pieces(path: Path, kind: type[T]) -> Iterator[T]:
    """Yield the values of a file. Raises ConfigError naming a file that is not whole."""
    decode = msgspec.msgpack.Decoder(kind).decode
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as content:
            while length := _read(content, _LENGTH_BYTES):
                yield decode(_read(content, int.from_bytes(length, "big")))
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _read(content: BinaryIO, size: int) -> bytes:
    """Return the next bytes: all of them, or none at the end."""
    found = bytearray()
    while len(found) < size and (more := content.read(size - len(found))):
        found += more
    if found and len(found) < size:
        raise msgspec.DecodeError("the file ends in the middle of a value")
    return bytes(found)


def digest_of(path: Path) -> str:
    digest = blake3()
    for piece in pieces_of(path):
        digest.update(piece)
    return str(digest.hexdigest())
