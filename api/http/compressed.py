"""Compressed request bodies, which become plain piece by piece as they arrive (RFC 9110, 8.4)."""

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

import zstandard

from api.http.asgi import Headers
from core.errors import InvalidRequest, UnsupportedMediaType

TAKEN: Final = "gzip, deflate, zstd"
_PIECE_BYTES: Final = 1 << 20
_GZIP, _ZLIB, _BARE = 31, 15, -15  # of zlib's `wbits`
_SLICE_BYTES: Final = 256
"""Of zstd at a time: four bytes may make 128 KiB, and nothing else bounds what its library makes at once."""
_WINDOW_BYTES: Final = 8 << 20  # what RFC 8878 asks of every reader; a frame that needs more is refused
_MOST_FRAMES: Final = 1024  # of one body: to begin one costs as much as many bytes, and an empty one makes none
_IDENTITY: Final = (b"", b"identity")


class Inflater(Protocol):
    """One body. A gzip of many members, or a zstd of many frames, is one body."""

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """Yield what a part of the body makes, a few MiB at a time at most. Raises InvalidRequest."""
        ...

    def close(self) -> None:
        """Raise InvalidRequest for a body that is cut off."""
        ...


class _Zlib:
    """Gzip or deflate."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._reader = None if encoding == "deflate" else zlib.decompressobj(_GZIP)
        self._is_begun = False
        self._members = 0

    def pieces(self, part: bytes) -> Iterator[bytes]:
        while part:
            if self._reader is None or (self._reader.eof and self._encoding == "gzip"):
                self._reader = zlib.decompressobj(self._form(part))
                self._members = _one_more(self._members, self._encoding)
            elif self._reader.eof:
                raise _wrong(self._encoding, "goes on behind its end")
            self._is_begun = True
            try:
                piece = self._reader.decompress(part, _PIECE_BYTES)
            except zlib.error as error:
                raise _wrong(self._encoding, f"cannot be read: {error}") from None
            part = self._reader.unconsumed_tail or self._reader.unused_data
            if piece:
                yield piece

    def close(self) -> None:
        if self._is_begun and (self._reader is None or not self._reader.eof):
            raise _wrong(self._encoding, "is cut off")

    def _form(self, part: bytes) -> int:
        if self._encoding == "gzip":
            return _GZIP
        return _ZLIB if part[0] & 0x0F == 8 else _BARE  # clients do not agree which of the two deflate is


class _Zstd:
    def __init__(self) -> None:
        self._frames = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._begun = 0

    def pieces(self, part: bytes) -> Iterator[bytes]:
        made, at = bytearray(), 0
        while at < len(part):
            if self._frame is None or self._frame.eof:
                self._frame = self._frames.decompressobj()
                self._begun = _one_more(self._begun, "zstd")
            given = part[at : at + _SLICE_BYTES]
            try:
                made += self._frame.decompress(given)
            except zstandard.ZstdError as error:
                raise _wrong("zstd", f"cannot be read: {error}") from None
            at += len(given) - len(self._frame.unused_data)
            if len(made) >= _PIECE_BYTES:
                yield bytes(made)
                made.clear()
        if made:
            yield bytes(made)

    def close(self) -> None:
        if self._frame is not None and not self._frame.eof:
            raise _wrong("zstd", "is cut off")


def _one_more(begun: int, encoding: str) -> int:
    if begun == _MOST_FRAMES:
        raise _wrong(encoding, f"begins anew more than {_MOST_FRAMES} times; compress all of it at once")
    return begun + 1


def _wrong(encoding: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"the body's {encoding} {what}", param="content-encoding", code="malformed_encoding")


def inflater_of(headers: Headers) -> Inflater | None:
    """Return what makes a body plain; None for one that is. Raises UnsupportedMediaType naming what is taken."""
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding in _IDENTITY:
        return None
    if encoding in (b"gzip", b"x-gzip"):
        return _Zlib("gzip")
    if encoding == b"deflate":
        return _Zlib("deflate")
    if encoding == b"zstd":
        return _Zstd()
    raise UnsupportedMediaType(
        f"content-encoding: send the body as {TAKEN}, or not compressed",
        param="content-encoding",
        code="unsupported_encoding",
        encodings=TAKEN,
    )
