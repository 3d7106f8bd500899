"""Bytes read one after another."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class ByteReader:
    """A cursor over bytes. Raises ValueError past their end."""

    def __init__(self, data: bytes) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> Bytes:
        """Return the next `size` bytes."""
        if not 0 <= size <= self.left:
            raise ValueError(f"{size} bytes are wanted, {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def peek(self, size: int) -> Bytes:
        """Return the next `size` bytes, or as many as are left, without moving."""
        return self._data[self._at : self._at + size]

    def number(self) -> int:
        """Read a number that the function `number` wrote."""
        value = shift = 0
        while (byte := int(self.take(1)[0])) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift


def number(value: int) -> bytes:
    """Encode a non-negative integer, seven bits a byte, the lowest first (LEB128)."""
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
