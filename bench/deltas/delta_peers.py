"""The formats that a delta is compared with: whole weights, weights under zstd, and PULSE (arXiv:2602.03839).

PULSE's recipe is the best that is published: which elements changed, as gaps narrowed to bytes or 16 bits, and their
new values, both under zstd. Of each part's layouts the smaller counts, and neither header nor manifest does."""

from collections.abc import Iterable, Mapping

import numpy as np
import zstandard
from numpy.typing import NDArray

from serving.weights.deltas.chunk import Bits

LEVEL = 1
Snapshot = dict[str, Bits]  # raw bits by tensor
_LONGEST = 255  # a byte of gaps that says: so much, and the next byte on top


def zstd_bytes(parts: Iterable[bytes]) -> int:
    return len(zstandard.ZstdCompressor(level=LEVEL).compress(b"".join(parts)))


def whole_bytes(child: Snapshot) -> int:
    """Count the bytes of the weights, tensor by tensor under zstd."""
    return sum(zstd_bytes([bits.tobytes()]) for bits in child.values())


def gaps_bytes(parent: Snapshot, child: Snapshot) -> int:
    changed = {name: np.flatnonzero(parent[name] != child[name]) for name in child}
    gaps = {name: np.diff(places, prepend=-1) - 1 for name, places in changed.items() if len(places)}
    values = {name: child[name][changed[name]] for name in gaps}
    return min(map(zstd_bytes, _narrowed(gaps))) + min(map(zstd_bytes, _laid_out(values)))


def _narrowed(gaps: Mapping[str, NDArray[np.int64]]) -> tuple[list[bytes], list[bytes]]:
    """Return gaps as bytes with an escape, and for each tensor in the narrowest width that holds its longest gap."""
    widths = {name: np.min_scalar_type(int(found.max())) for name, found in gaps.items()}
    return [_escaped(found) for found in gaps.values()], [gaps[name].astype(widths[name]).tobytes() for name in gaps]


def _escaped(gaps: NDArray[np.int64]) -> bytes:
    escapes = gaps // _LONGEST
    ends = np.cumsum(escapes + 1) - 1
    out = np.full(int(ends[-1]) + 1, _LONGEST, np.uint8)
    out[ends] = gaps % _LONGEST
    return out.tobytes()


def _laid_out(values: Snapshot) -> tuple[list[bytes], list[bytes]]:
    """Return values one after another, and as planes: all lowest bytes, then all second ones, and so on."""
    planes = [bits.view(np.uint8).reshape(len(bits), -1).T.tobytes() for bits in values.values()]
    return [bits.tobytes() for bits in values.values()], planes
