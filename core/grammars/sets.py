"""The sets of ids that top-k, top-p and min-p left, one for each token of a turn, as text for an attachment.

Each set is its size and the differences of its ascending ids, all sets as numbers of seven bits to a byte (LEB128,
https://dwarfstd.org, 7.6), compressed by zlib and written as base 85 (RFC 1924's alphabet)."""

import base64
import binascii
import zlib
from collections.abc import Sequence
from typing import Final

ATTACHMENT: Final = "sampling_sets"
MAX_IDS: Final = 1 << 16
"""Ids of a turn's sets together: what is beyond is not recorded, and the turn does not train (`mask_too_large`)."""
TOO_LARGE: Final = "mask_too_large"
_MOST_BYTES: Final = 8 * MAX_IDS


def pack(sets: Sequence[Sequence[int]]) -> str:
    """Pack sets of ascending ids."""
    out = bytearray()
    for ids in sets:
        _write(out, len(ids))
        before = 0
        for token_id in ids:
            _write(out, token_id - before)
            before = token_id
    return base64.b85encode(zlib.compress(bytes(out))).decode()


def unpack(text: str) -> list[list[int]]:
    """Return the sets. Raises ValueError for text that `pack` does not make."""
    try:
        inflating = zlib.decompressobj()
        data = inflating.decompress(base64.b85decode(text), _MOST_BYTES)
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"no sets of ids: {error}") from error
    if inflating.unconsumed_tail:
        raise ValueError(f"sets of more than {_MOST_BYTES} bytes")
    if not inflating.eof or inflating.unused_data:
        raise ValueError("no sets of ids: they have no end, or something after it")
    numbers = _numbers(data)
    sets, place = [], 0
    while place < len(numbers):
        size, place = numbers[place], place + 1
        ids, token_id = [], 0
        for step in numbers[place : place + size]:
            token_id += step
            ids.append(token_id)
        if len(ids) != size:
            raise ValueError("a set of ids has no end")
        sets.append(ids)
        place += size
    return sets


def _write(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _numbers(data: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number, shift = 0, 0
    if shift:
        raise ValueError("a number has no end")
    return numbers
