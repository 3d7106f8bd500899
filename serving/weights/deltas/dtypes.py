"""The meaning of a safetensors dtype's bits for a difference."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[Any]  # an unsigned type as wide as the elements, little-endian


@dataclass(frozen=True)
class Kind:
    """A float is a sign and a magnitude, whose bits rise with it in ULPs; an integer is its bits."""

    bits: Any
    mantissa_bits: int | None = None  # None: an integer

    @property
    def itemsize(self) -> int:
        return int(np.dtype(self.bits).itemsize)

    @property
    def top(self) -> Any:
        """The highest bit."""
        return self.bits(1 << 8 * self.itemsize - 1)

    @property
    def sign(self) -> Any:
        """The sign's bit; 0 for an integer."""
        return self.bits(0) if self.mantissa_bits is None else self.top

    @property
    def magnitude(self) -> Any:
        """All bits but the sign's."""
        return ~self.sign


BYTES = Kind(np.uint8)
_KINDS = {
    "F64": Kind(np.uint64, 52),
    "F32": Kind(np.uint32, 23),
    "C64": Kind(np.uint32, 23),
    "F16": Kind(np.uint16, 10),
    "BF16": Kind(np.uint16, 7),
    "F8_E4M3": Kind(np.uint8, 3),
    "F8_E4M3FNUZ": Kind(np.uint8, 3),
    "F8_E5M2": Kind(np.uint8, 2),
    "F8_E5M2FNUZ": Kind(np.uint8, 2),
    "I64": Kind(np.uint64),
    "U64": Kind(np.uint64),
    "I32": Kind(np.uint32),
    "U32": Kind(np.uint32),
    "I16": Kind(np.uint16),
    "U16": Kind(np.uint16),
}


def kind_of(dtype: str) -> Kind:
    """Everything else (booleans, bytes, scales that are exponents, elements that share a byte) is taken as bytes."""
    return _KINDS.get(dtype, BYTES)
