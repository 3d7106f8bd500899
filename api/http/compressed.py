"""Compressed request bodies, which become plain piece by piece as they arrive (RFC 9110, 8.4)."""

import zlib
from collections.abc import Iterator
from typing import Final

from api.http.asgi import Headers
from core.errors import InvalidRequest, UnsupportedMediaType

TAKEN: Final = "gzip, deflate"
_PIECE_BYTES: Final = 1 << 20
_GZIP, _ZLIB, _BARE = 31, 15, -15  # of zlib's `wbits`
_IDENTITY: Final = (b"", b"identity")


class Inflater:
    """One body. A gzip of many members is one body."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._reader = None if encoding == "deflate" else zlib.decompressobj(_GZIP)
        self._is_begun = False

    def pieces(self, part: bytes) -> Iterator[bytes]:
        """Yield what a part of the body makes, at most 1 MiB at a time. Raises InvalidRequest."""
        while part:
            if self._reader is None or (self._reader.eof and self._encoding == "gzip"):
                self._reader = zlib.decompressobj(self._form(part))
            elif self._reader.eof:
                raise self._wrong("goes on behind its end")
            self._is_begun = True
            try:
                piece = self._reader.decompress(part, _PIECE_BYTES)
            except zlib.error as error:
                raise self._wrong(f"cannot be read: {error}") from None
            part = self._reader.unconsumed_tail or self._reader.unused_data
            if piece:
                yield piece

    def close(self) -> None:
        """Raise InvalidRequest for a body that is cut off."""
        if self._is_begun and (self._reader is None or not self._reader.eof):
            raise self._wrong("is cut off")

    def _form(self, part: bytes) -> int:
        if self._encoding == "gzip":
            return _GZIP
        return _ZLIB if part[0] & 0x0F == 8 else _BARE  # clients do not agree which of the two deflate is

    def _wrong(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"the body's {self._encoding} {what}", param="content-encoding", code="malformed_encoding"
        )


def inflater_of(headers: Headers) -> Inflater | None:
    """Return what makes a body plain; None for one that is. Raises UnsupportedMediaType naming what is taken."""
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding in _IDENTITY:
        return None
    if encoding in (b"gzip", b"x-gzip"):
        return Inflater("gzip")
    if encoding == b"deflate":
        return Inflater("deflate")
    raise UnsupportedMediaType(
        f"content-encoding: send the body as {TAKEN}, or not compressed",
        param="content-encoding",
        code="unsupported_encoding",
        encodings=TAKEN,
    )
