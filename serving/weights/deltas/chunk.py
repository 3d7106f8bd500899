"""The encoding of the difference between two ranges of raw bits.

A chunk is empty (no change), or a byte that names its encoding and then

    steps    classes of similar magnitude (`magnitudes`); in each, which elements changed, which of these changed sign,
             and by how many units the magnitude of the others and of these moved
    values   which elements changed, and their new values

Legend: N elements, M changed ones of a class."""

import numpy as np

from serving.weights.deltas.dtypes import Bits, Kind
from serving.weights.deltas.integers import decode_planes, decode_steps, encode_planes, encode_steps
from serving.weights.deltas.magnitudes import divide, find_bounds, shift_of
from serving.weights.deltas.stream import ByteReader, number
from serving.weights.deltas.subsets import Positions, decode_subset, encode_mask, encode_subset

ENCODINGS = ("steps", "values")
_DENSE = 0.4  # share of the changed elements' own bytes from which on steps are held against values
_MOST = 0.5  # share of a class from which on naming the changed elements costs more than steps of 0


def encode_chunk(parent_N: Bits, child_N: Bits, kind: Kind) -> bytes:
    """b"" where nothing changed. The first byte is an index into ENCODINGS."""
    changed = np.flatnonzero(parent_N != child_N)
    if not len(changed):
        return b""
    steps = b"\0" + _encode_steps(parent_N, child_N, changed, kind)
    if len(steps) < _DENSE * len(changed) * kind.itemsize:
        return steps
    values = b"\1" + encode_subset(changed, len(parent_N)) + encode_planes(child_N.take(changed))
    return min(steps, values, key=len)


def decode_chunk(data: bytes, parent_N: Bits, kind: Kind) -> Bits:
    """Decode a chunk. Raises ValueError for data that the encoder cannot have written."""
    if not data:
        return parent_N
    reader = ByteReader(data)
    child_N = parent_N.copy()
    if reader.take(1)[0]:
        changed = decode_subset(reader, len(parent_N))
        child_N[changed] = decode_planes(reader, len(changed), kind.bits)
    else:
        _decode_steps(reader, child_N, kind)
    if reader.left:
        raise ValueError(f"{reader.left} bytes too many")
    return child_N


def _encode_steps(parent_N: Bits, child_N: Bits, changed: Positions, kind: Kind) -> bytes:
    magnitudes_N = parent_N & kind.magnitude
    bounds = find_bounds(magnitudes_N, kind)
    parts = [number(len(bounds)), *map(number, bounds)]
    for octaves in divide(magnitudes_N, bounds, kind):
        ranks_M, where_M, changed = octaves.split(changed)
        if len(ranks_M) > _MOST * octaves.size:  # all of them, then: a step may be 0
            ranks_M = np.arange(octaves.size)
            where_M = octaves.select(ranks_M)
        parts += [encode_subset(ranks_M, octaves.size), _moves(parent_N.take(where_M), child_N.take(where_M), kind)]
    return b"".join(parts)


def _decode_steps(reader: ByteReader, child_N: Bits, kind: Kind) -> None:
    """Decode in place: a class is read before anything in it changes."""
    magnitudes_N = child_N & kind.magnitude
    bounds = [reader.number() for _ in range(reader.number())]
    if any(bound > int(kind.magnitude) >> shift_of(kind) for bound in bounds):
        raise ValueError(f"classes bounded by {bounds}")
    for octaves in divide(magnitudes_N, bounds, kind):
        where_M = octaves.select(decode_subset(reader, octaves.size))
        child_N[where_M] = _unmoves(reader, child_N.take(where_M), kind)


def _moves(parent_M: Bits, child_M: Bits, kind: Kind) -> bytes:
    """Encode how far elements moved.

    Those that change sign are encoded separately: they cross zero, which is far in units."""
    if not len(parent_M):
        return b""
    flips_M = (parent_M ^ child_M) & kind.sign != 0
    steps_M = (child_M & kind.magnitude) - (parent_M & kind.magnitude)
    parts = [encode_mask(flips_M)]
    if flips_M.any():
        parts.append(encode_steps(steps_M[flips_M], 0))
        steps_M = steps_M[~flips_M]
    least = int(steps_M.all())
    return b"".join([*parts, bytes([least]), encode_steps(steps_M, least)])


def _unmoves(reader: ByteReader, parent_M: Bits, kind: Kind) -> Bits:
    if not len(parent_M):
        return parent_M
    flips = decode_subset(reader, len(parent_M))
    crossing = decode_steps(reader, len(flips), 0, kind.bits)
    steps_M = decode_steps(reader, len(parent_M) - len(flips), int(reader.take(1)[0]), kind.bits)
    if not len(flips):
        return _moved(parent_M, steps_M, kind)
    flips_M = np.zeros(len(parent_M), np.bool_)
    flips_M[flips] = True
    child_M = parent_M.copy()
    child_M[flips_M] = _moved(~parent_M[flips_M] & kind.sign | parent_M[flips_M] & kind.magnitude, crossing, kind)
    child_M[~flips_M] = _moved(parent_M[~flips_M], steps_M, kind)
    return child_M


def _moved(bits_M: Bits, steps_M: Bits, kind: Kind) -> Bits:
    moved_M: Bits = (bits_M + steps_M) & kind.magnitude | bits_M & kind.sign
    return moved_M
