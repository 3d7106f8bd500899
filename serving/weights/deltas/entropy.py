"""What turns skewed bytes into fewer: zstd, told to look for no matches that are none, so that its Huffman coder does
the work.

Legend: M values, K bits of each, B bytes.
"""

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from serving.weights.deltas.stream import ByteReader, Bytes

LEVEL = 1


def _parameters() -> zstandard.ZstdCompressionParameters:
    """Matches of three or four bytes are chance in such data, and cost more than the bytes that they replace."""
    return zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        strategy=zstandard.STRATEGY_FAST,
        target_length=0,
        min_match=7,
        hash_log=6,
        window_log=17,
        write_content_size=False,
        write_checksum=False,
    )


def squeeze(bytes_B: Bytes, limit: int) -> bytes:
    """`bytes_B` under zstd; b"" where that is not smaller than `limit` bytes."""
    packed = zstandard.ZstdCompressor(compression_params=_parameters()).compress(bytes_B.tobytes())
    return packed if len(packed) < limit else b""


def unsqueeze(packed: Bytes, most: int) -> Bytes:
    """At most `most` bytes. Raises ValueError for what is no zstd frame."""
    try:
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(packed.data, max_output_size=most), np.uint8)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def pack_bits(values_M: NDArray[Any], k: int) -> bytes:
    """The lowest `k` bits (K) of each: the first of all, then the second of all, and so on."""
    one = values_M.dtype.type(1)
    return np.packbits([values_M >> values_M.dtype.type(bit) & one for bit in range(k)]).tobytes() if k else b""


def unpack_bits(reader: ByteReader, count: int, k: int, dtype: Any) -> NDArray[Any]:
    """`count` (M) values of `k` bits."""
    bits_KM = np.unpackbits(reader.take(-(-count * k // 8)), count=count * k).reshape(k, count)
    values_M = np.zeros(count, dtype)
    for bit in range(k):
        values_M |= bits_KM[bit].astype(dtype) << dtype(bit)
    return values_M
