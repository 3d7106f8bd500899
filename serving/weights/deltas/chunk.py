"""The encoding of the difference between two ranges of raw bits.

Bits are read as unsigned integers: then a float that moves by a unit in its last place moves by 1, up or down, whatever
its dtype, and the difference is exact, NaN and infinities included. A chunk is empty (no change), or a byte and then

    0    the gaps between the elements that changed, and their steps
    1    the steps of all elements, of which many changed

Steps are zigzag (0, -1, 1, -2, 2 become 0, 1, 2, 3, 4). Gaps and steps are in planes: the lowest bytes of all, then the
second bytes, and so on, each plane a zstd frame after its size.

Legend: N elements, M changed ones, B bytes of one."""

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

Bits = NDArray[Any]  # unsigned integers as wide as the elements, little-endian

SIZE_BYTES = 4
_SOME, _ALL = b"\0", b"\1"
_MOST = 0.25  # share of changed elements beyond which steps of 0 are faster than gaps, and cost little more
_GAP = np.dtype("<u4")
# Short matches are chance in such data: without them zstd is its Huffman coder, which is faster, and packs as much.
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(
    1,
    strategy=zstandard.STRATEGY_FAST,
    target_length=0,
    min_match=7,
    hash_log=6,
    window_log=17,
    write_content_size=True,
    write_checksum=False,
)


def encode_chunk(parent_N: Bits, child_N: Bits) -> bytes:
    """Encode a chunk; b"" where nothing changed."""
    steps_N = child_N - parent_N
    changed_N = steps_N != 0
    count = int(np.count_nonzero(changed_N))
    if not count:
        return b""
    if count > _MOST * len(steps_N):
        return _ALL + _pack(_zigzag(steps_N))
    changed_M = np.flatnonzero(changed_N)
    gaps_M = np.diff(changed_M, prepend=-1) - 1
    return (
        _SOME + count.to_bytes(SIZE_BYTES, "little") + _pack(gaps_M.astype(_GAP)) + _pack(_zigzag(steps_N[changed_M]))
    )


def decode_chunk(data: bytes, parent_N: Bits) -> Bits:
    """Decode a chunk. Raises ValueError for data that the encoder cannot have written."""
    if not data:
        return parent_N
    parts = _Parts(data)
    if parts.has_all:
        child_N = parent_N + _unzigzag(parts.take(len(parent_N), parent_N.dtype))
    else:
        count = parts.number()
        if count > len(parent_N):
            raise ValueError(f"{count} of {len(parent_N)} elements")
        changed_M = np.cumsum(parts.take(count, _GAP), dtype=np.int64) + np.arange(count)
        steps_M = _unzigzag(parts.take(count, parent_N.dtype))
        if count and changed_M[-1] >= len(parent_N):
            raise ValueError(f"element {changed_M[-1]} of {len(parent_N)}")
        child_N = parent_N.copy()
        child_N[changed_M] += steps_M
    parts.expect_end()
    return child_N


def _zigzag(steps_M: Bits) -> Bits:
    signed_M = steps_M.view(f"i{steps_M.itemsize}")
    zigzag_M: Bits = (signed_M << 1 ^ signed_M >> 8 * steps_M.itemsize - 1).view(steps_M.dtype)
    return zigzag_M


def _unzigzag(zigzag_M: Bits) -> Bits:
    one = zigzag_M.dtype.type(1)
    steps_M: Bits = zigzag_M >> one ^ -(zigzag_M & one)
    return steps_M


def _pack(words_M: Bits) -> bytes:
    bytes_MB = words_M.view(np.uint8).reshape(-1, words_M.itemsize)
    parts = []
    for place in range(words_M.itemsize):
        plane_M = np.ascontiguousarray(bytes_MB[:, place])
        packed = zstandard.ZstdCompressor(compression_params=_PARAMETERS).compress(plane_M.data)
        parts += [len(packed).to_bytes(SIZE_BYTES, "little"), packed]
    return b"".join(parts)


class _Parts:
    """The parts of a chunk, one after another. Raises ValueError where they are none."""

    def __init__(self, data: bytes) -> None:
        if data[:1] not in (_SOME, _ALL):
            raise ValueError(f"chunk of kind {data[0]}")
        self.has_all = data[:1] == _ALL
        self._data, self._at = memoryview(data), 1

    def number(self) -> int:
        return int.from_bytes(self._raw(SIZE_BYTES), "little")

    def take(self, count: int, word: np.dtype[Any]) -> Bits:
        """Return the next `count` words."""
        bytes_MB = np.empty((count, word.itemsize), np.uint8)
        for place in range(word.itemsize):
            bytes_MB[:, place] = self._plane(count)
        return bytes_MB.reshape(-1).view(word)

    def _plane(self, count: int) -> NDArray[np.uint8]:
        frame = self._raw(self.number())
        try:
            if (size := zstandard.frame_content_size(frame)) != count:  # asked before so much memory is taken
                raise ValueError(f"{size} bytes instead of {count}")
            return np.frombuffer(zstandard.ZstdDecompressor().decompress(frame), np.uint8)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error

    def _raw(self, size: int) -> memoryview:
        if size > len(self._data) - self._at:
            raise ValueError(f"{size - len(self._data) + self._at} bytes are missing")
        self._at += size
        return self._data[self._at - size : self._at]

    def expect_end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes too many")
