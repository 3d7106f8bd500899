"""The hash of a tensor on a GPU that SGLang's weights checker reports (0.5.23, kernels/ops/memory/gpu_tensor_hash.py).

Each 32-bit word is mixed with its place; the words of a tile are summed, and the tiles' 64-bit hashes are summed. It is
a checksum against a load that went wrong, and no cryptographic hash."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]

_TILE = 8192  # words
_CHUNK = 16 * _TILE  # words at once, which fit a core's cache
_SEED = 0x243F6A88
_LANES = (
    (np.uint32(0x27D4EB2D), np.uint32(_SEED), 15),
    (np.uint32(0x165667B1), np.uint32(((_SEED * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF), 13),
)
"""Of each half of the result: what a place is multiplied with, what is added, and by how much it is rotated."""
_MASK = (1 << 64) - 1


def cuda_hash(parts: Iterable[memoryview]) -> str:
    """Return the hash of the parts' bytes, one part after the other, as 16 hexadecimal digits."""
    parts = list(parts)
    count = -(-sum(map(len, parts)) // 4)
    total = first = 0
    for words in _chunks(parts):
        total += _sum_of_tiles(words, first, count)
        first += len(words)
    return f"{_splitmix64(total & _MASK):016x}"


def _chunks(parts: Iterable[memoryview]) -> Iterator[Words]:
    """Yield the words by whole tiles, whatever the parts' lengths; the last word is filled up with zeros."""
    size, rest = 4 * _CHUNK, b""
    for part in parts:
        begin = 0
        if rest:
            begin = min(size - len(rest), len(part))
            rest += bytes(part[:begin])
            if len(rest) < size:
                continue
            yield np.frombuffer(rest, np.uint32)
        end = begin + (len(part) - begin) // size * size
        for place in range(begin, end, size):
            yield np.frombuffer(part[place : place + size], np.uint32)
        rest = bytes(part[end:])
    if rest:
        yield np.frombuffer(rest + bytes(-len(rest) % 4), np.uint32)


def _sum_of_tiles(words: Words, first: int, count: int) -> int:
    """`first`: the place of the first word; `count`: of all words of the tensor."""
    places = np.arange(first, first + len(words), dtype=np.uint64).astype(np.uint32)
    mixed, scratch = np.empty_like(places), np.empty_like(places)
    starts = np.arange(0, len(words), _TILE)
    length = np.uint32(4 * count & 0xFFFFFFFF)
    halves = []
    for factor, summand, turn in _LANES:
        np.multiply(places, factor, out=mixed)
        np.add(mixed, summand, out=mixed)
        for shifted in (np.left_shift, np.right_shift):
            shifted(places, turn if shifted is np.left_shift else 32 - turn, out=scratch)
            np.bitwise_xor(mixed, scratch, out=mixed)
        np.bitwise_xor(mixed, words, out=mixed)
        _mix(mixed, scratch)
        tiles = np.add.reduceat(mixed, starts, dtype=np.uint32) ^ length
        _mix(tiles, np.empty_like(tiles))
        halves.append(tiles.astype(np.uint64))
    return int(((halves[0] << np.uint64(32)) | halves[1]).sum(dtype=np.uint64))


def _mix(words: Words, scratch: Words) -> None:
    """Mix each word in place: the end of MurmurHash3's 32-bit form."""
    for shift, factor in ((16, np.uint32(0x85EBCA6B)), (13, np.uint32(0xC2B2AE35)), (16, None)):
        np.right_shift(words, shift, out=scratch)
        np.bitwise_xor(words, scratch, out=words)
        if factor is not None:
            np.multiply(words, factor, out=words)


def _splitmix64(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
