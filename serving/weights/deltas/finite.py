"""The check that weights are finite."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from core.errors import WeightsError
from core.model.weights_digest import tensors_of
from serving.weights.deltas.checkpoint import OpenFiles, stretches

# Bits that are all set in what is no finite number, in the element's width. Of the 8-bit formats (OCP OFP8, and the
# FNUZ ones of AMD and Graphcore), E5M2 alone knows infinity, and FNUZ keeps the place of -0 for NaN, and no other.
_ALL_SET = {
    "F64": 0x7FF0_0000_0000_0000,
    "F32": 0x7F80_0000,
    "C64": 0x7F80_0000,
    "F16": 0x7C00,
    "BF16": 0x7F80,
    "F8_E4M3": 0x7F,
    "F8_E5M2": 0x7C,
    "F8_E8M0": 0xFF,
}
_EXACTLY = {"F8_E4M3FNUZ": 0x80, "F8_E5M2FNUZ": 0x80}


def check_finite(shards: Sequence[Path]) -> None:
    """Check shards. Raises WeightsError naming file and tensor at the first NaN or infinity.

    Integers and booleans are always finite."""
    with OpenFiles(shards) as files:
        for name, tensor in tensors_of(shards).items():
            if tensor.dtype not in _ALL_SET and tensor.dtype not in _EXACTLY:
                continue
            for stretch in stretches(tensor):
                bits_N = files.read(stretch)
                mask = bits_N.dtype.type(_ALL_SET.get(tensor.dtype, 0xFF))
                bad = np.flatnonzero(bits_N & mask == bits_N.dtype.type(_EXACTLY.get(tensor.dtype, mask)))
                if len(bad):
                    place = (stretch.start - tensor.start) // bits_N.itemsize + int(bad[0])
                    raise WeightsError(f"{stretch.path}: tensor {name} is not finite at element {place}")
