"""A subset of 0..N-1 in few bytes.

Golomb-Rice codes of the gaps between its members are within 3 % of the entropy where members fall at random (Golomb
1966, Rice 1979), and need no table, which a few hundred members would not pay for. Where members gather, bytes of gaps
under zstd are smaller. Whichever is smallest is written; of a set above one half, its complement.

Legend: N size of the universe, M members, B bytes or bits.
"""

import numpy as np
from numpy.typing import NDArray

from serving.weights.deltas.entropy import pack_bits, squeeze, unpack_bits, unsqueeze
from serving.weights.deltas.stream import ByteReader, number

Positions = NDArray[np.int64]

_WHOLE, _BITMAP, _RICE, _GAPS = range(4)  # bits 0-1 of the first byte; bit 2: the complement; bits 3-7: k
_COMPLEMENT = 4
_LONGEST = 255  # a byte of gaps that says: so much, and the next byte on top
_FEW = 256  # so few members are not worth trying zstd on
_HALF = (0.4, 0.6)  # shares at which a bitmap is as good as it gets
_UNEVEN = 3.0  # mean square of the gaps over their squared mean from which on they are no accident (that gives 2)


def encode_subset(positions_M: Positions, size: int) -> bytes:
    """`positions_M` rises strictly, from 0 or more to less than `size` (N)."""
    if _HALF[0] * size < len(positions_M) < _HALF[1] * size:
        return bytes([_BITMAP]) + np.packbits(_mask(positions_M, size)).tobytes()
    complement = _COMPLEMENT if 2 * len(positions_M) > size else 0
    members_M = _others(positions_M, size) if complement else positions_M
    if not len(members_M):
        return bytes([_WHOLE | complement])
    gaps_M = members_M.copy()
    gaps_M[1:] -= members_M[:-1] + 1
    k, num_bits = _best_k(gaps_M)
    if _are_uneven(gaps_M) and (packed := _pack_gaps(gaps_M, num_bits // 8)):
        return bytes([_GAPS | complement]) + number(len(packed)) + packed
    return bytes([_RICE | complement | k << 3]) + number(len(gaps_M)) + _rice(gaps_M, k)


def encode_mask(mask_N: NDArray[np.bool_]) -> bytes:
    """Encode the subset where `mask_N` is true."""
    if _HALF[0] * len(mask_N) < np.count_nonzero(mask_N) < _HALF[1] * len(mask_N):
        return bytes([_BITMAP]) + np.packbits(mask_N).tobytes()
    return encode_subset(np.flatnonzero(mask_N), len(mask_N))


def decode_subset(reader: ByteReader, size: int) -> Positions:
    """Decode a subset. Raises ValueError for data that `encode_subset` never writes."""
    head = int(reader.take(1)[0])
    match head & 3:
        case 0:
            gaps_M = np.empty(0, np.int64)
        case 1:
            return np.flatnonzero(np.unpackbits(reader.take(-(-size // 8)), count=size))
        case 2:
            gaps_M = _unrice(reader, head >> 3, size)
        case _:
            gaps_M = _unpack_gaps(reader, size)
    members_M = np.cumsum(gaps_M + 1) - 1
    if len(members_M) and members_M[-1] >= size:
        raise ValueError(f"member {members_M[-1]} of a set of {size}")
    return _others(members_M, size) if head & _COMPLEMENT else members_M


def _mask(positions_M: Positions, size: int) -> NDArray[np.bool_]:
    mask_N = np.zeros(size, np.bool_)
    mask_N[positions_M] = True
    return mask_N


def _others(positions_M: Positions, size: int) -> Positions:
    return np.flatnonzero(~_mask(positions_M, size))


def _are_uneven(gaps_M: Positions) -> bool:
    return len(gaps_M) >= _FEW and float(gaps_M @ gaps_M) * len(gaps_M) > _UNEVEN * float(gaps_M.sum()) ** 2


def _best_k(gaps_M: Positions) -> tuple[int, int]:
    """Return the best parameter, and the number of bits that its codes take."""
    guess = int(gaps_M.sum() * 0.69 / len(gaps_M) + 1).bit_length() - 1
    costs = {k: int((gaps_M >> k).sum()) + len(gaps_M) * (k + 1) for k in range(max(0, guess - 1), guess + 2)}
    best = min(costs, key=lambda k: costs[k])
    return best, costs[best]


def _rice(gaps_M: Positions, k: int) -> bytes:
    """Encode gaps: the quotients in unary (zeros, then a one), then the remainders."""
    ends_M = np.cumsum((gaps_M >> k) + 1) - 1
    unary_B = _mask(ends_M, int(ends_M[-1]) + 1)
    return np.packbits(unary_B).tobytes() + pack_bits(gaps_M, k)


def _unrice(reader: ByteReader, k: int, size: int) -> Positions:
    num_members = reader.number()
    most_bits = num_members + (size >> k) + 1
    ends_M = np.flatnonzero(np.unpackbits(reader.peek(-(-most_bits // 8))))[:num_members]
    if not 0 < num_members == len(ends_M):
        raise ValueError(f"{len(ends_M)} of {num_members} members")
    reader.take(int(ends_M[-1]) // 8 + 1)
    quotients_M = ends_M.copy()
    quotients_M[1:] -= ends_M[:-1] + 1
    gaps_M: Positions = quotients_M << k | unpack_bits(reader, num_members, k, np.int64)
    return gaps_M


def _pack_gaps(gaps_M: Positions, limit: int) -> bytes:
    """b"" where it would not be smaller than `limit` bytes."""
    num_longest_M = gaps_M // _LONGEST
    ends_M = np.cumsum(num_longest_M + 1) - 1
    if ends_M[-1] >= 8 * limit + len(gaps_M):
        return b""
    bytes_B = np.full(int(ends_M[-1]) + 1, _LONGEST, np.uint8)
    bytes_B[ends_M] = gaps_M - num_longest_M * _LONGEST
    return squeeze(bytes_B, limit)


def _unpack_gaps(reader: ByteReader, size: int) -> Positions:
    bytes_B = unsqueeze(reader.take(reader.number()), 2 * size)
    ends_M = np.flatnonzero(bytes_B != _LONGEST)
    num_longest_M = ends_M.copy()
    num_longest_M[1:] -= ends_M[:-1] + 1
    return num_longest_M * _LONGEST + bytes_B[ends_M]
