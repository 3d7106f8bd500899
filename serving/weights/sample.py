"""An estimate of a delta's size, before it is made."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from core.model.weights_digest import tensors_of
from serving.weights.deltas.checkpoint import ByteRange, OpenFiles, width_of
from serving.weights.deltas.chunk import Bits, encode_chunk

_BYTES = 1 << 16  # of the checkpoint: about what a millisecond allows
_LEAST = 64  # of a tensor


def promised_share(parent: Sequence[Path], child: Sequence[Path]) -> float:
    """Return the encoded size of a sample of two checkpoints of one layout, as a share of its raw size.

    The sample is a range from the middle of every tensor, in proportion to its size; those of one dtype are encoded
    together. Raises WeightsError."""
    before, after = tensors_of(parent), tensors_of(child)
    total = sum(tensor.end - tensor.start for tensor in after.values())
    samples: dict[str, list[tuple[Bits, Bits]]] = {}
    with OpenFiles([*parent, *child]) as files:
        for name, tensor in after.items():
            width, size = width_of(tensor.dtype), tensor.end - tensor.start
            wanted = min(size, max(_LEAST, size * _BYTES // total)) // width * width
            middle = (size - wanted) // 2 // width * width
            places = (before[name], tensor)
            one, two = (files.read(ByteRange(place.path, place.start + middle, wanted, width)) for place in places)
            samples.setdefault(tensor.dtype, []).append((one, two))
    sampled = encoded = 0
    for pairs in samples.values():
        parent_N, child_N = (np.concatenate(stretches) for stretches in zip(*pairs, strict=True))
        sampled += child_N.nbytes
        encoded += len(encode_chunk(parent_N, child_N))
    return encoded / max(sampled, 1)
