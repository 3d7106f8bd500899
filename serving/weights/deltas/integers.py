"""Steps up and down, of one distribution, in few bytes, in one of two ways.

Levels: which go down; the lowest bits of all lengths as they are; of what is left, which are above 0, of these which
above 1, and so on, each as a subset. Near the entropy where few are long, and where there are few at all.
Planes: zigzag (0, -1, 1, -2, 2 become 0, 1, 2, 3, 4), then the lowest bytes of all, the second bytes, and so on, each
under zstd.

Legend: M steps, B bytes of one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.weights.deltas.entropy import pack_bits, squeeze, unpack_bits, unsqueeze
from serving.weights.deltas.stream import ByteReader, number
from serving.weights.deltas.subsets import decode_subset, encode_mask, encode_subset

Words = NDArray[Any]  # unsigned; steps as two's complement
_PLANES = 255  # the first byte; else levels, and the number of their lowest bits
_MAX_LEVEL = 40  # what is longer stands as it is
_SHORT = 0.5  # mean length beyond the least up to which levels are smaller
_FEW = 2048  # steps up to which they are, however long


def encode_steps(steps_M: Words, least: int) -> bytes:
    """Encode steps, none smaller than `least` (0 or 1); a step of 0 has no direction."""
    if not len(steps_M):
        return b""
    width = 8 * steps_M.itemsize
    signs_M = (steps_M.view(f"i{steps_M.itemsize}") >> (width - 1)).view(steps_M.dtype)  # all ones: down
    lengths_M = (steps_M ^ signs_M) - signs_M - steps_M.dtype.type(least)
    mean = lengths_M.mean(dtype=np.float64)
    if mean < _SHORT or len(steps_M) <= _FEW:
        num_low = max(0, int(mean).bit_length() - 1)
        low, high_M = pack_bits(lengths_M, num_low), lengths_M >> steps_M.dtype.type(num_low)
        return bytes([num_low]) + encode_mask(signs_M.astype(np.bool_)) + low + _levels(high_M)
    return bytes([_PLANES]) + encode_planes(steps_M << steps_M.dtype.type(1) ^ signs_M)


def decode_steps(reader: ByteReader, count: int, least: int, dtype: Any) -> Words:
    """`count` (M) steps of the unsigned type `dtype`. Raises ValueError for what was never encoded."""
    if not count:
        return np.empty(0, dtype)
    num_low = int(reader.take(1)[0])
    if num_low == _PLANES:
        zigzag_M = decode_planes(reader, count, dtype)
        steps_M: Words = zigzag_M >> dtype(1) ^ -(zigzag_M & dtype(1))
        return steps_M
    down = decode_subset(reader, count)
    low_M = unpack_bits(reader, count, num_low, dtype)
    steps_M = (_unlevels(reader, count, dtype) << dtype(num_low) | low_M) + dtype(least)
    steps_M[down] = -steps_M[down]
    return steps_M


def _levels(lengths_M: Words) -> bytes:
    parts = []
    for _ in range(_MAX_LEVEL):
        longer = np.flatnonzero(lengths_M)
        parts.append(encode_subset(longer, len(lengths_M)))
        if not len(longer):
            return b"".join(parts)
        lengths_M = lengths_M.take(longer) - lengths_M.dtype.type(1)
    return b"".join([*parts, lengths_M.tobytes()])


def _unlevels(reader: ByteReader, count: int, dtype: Any) -> Words:
    lengths_M = np.zeros(count, dtype)
    longer = np.arange(count)
    for _ in range(_MAX_LEVEL):
        longer = longer.take(decode_subset(reader, len(longer)))
        if not len(longer):
            return lengths_M
        lengths_M[longer] += dtype(1)
    lengths_M[longer] += reader.take(len(longer) * lengths_M.itemsize).view(dtype)
    return lengths_M


def encode_planes(words_M: Words) -> bytes:
    """Encode each plane after its size; a size of 0 stands for one that zstd would not make smaller."""
    bytes_MB = words_M.view(np.uint8).reshape(len(words_M), -1)
    parts = []
    for place in range(words_M.itemsize):
        plane_M = np.ascontiguousarray(bytes_MB[:, place])
        packed = squeeze(plane_M, len(plane_M))
        parts += [number(len(packed)), packed or plane_M.tobytes()]
    return b"".join(parts)


def decode_planes(reader: ByteReader, count: int, dtype: Any) -> Words:
    words_M = np.empty(count, dtype)
    bytes_MB = words_M.view(np.uint8).reshape(count, -1)
    for place in range(words_M.itemsize):
        size = reader.number()
        plane_M = unsqueeze(reader.take(size), count) if size else reader.take(count)
        if len(plane_M) != count:
            raise ValueError(f"{len(plane_M)} bytes instead of {count}")
        bytes_MB[:, place] = plane_M
    return words_M
