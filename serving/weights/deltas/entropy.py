"""Compression of skewed bytes by zstd's Huffman coder.

zstd is told to look for no matches, since such data has none. Legend: M values, K bits of each, B bytes."""

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from serving.weights.deltas.stream import ByteReader, Bytes

LEVEL = 1


def _parameters() -> zstandard.ZstdCompressionParameters:
    """Return parameters against short matches: in such data they are chance, and cost more than they save."""
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
    """Decompress at most `most` bytes. Raises ValueError for data that is no zstd frame."""
    try:
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(packed.data, max_output_size=most), np.uint8)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def pack_bits(values_M: NDArray[Any], k: int) -> bytes:
    """Pack the lowest `k` bits (K) of each value: the first bit of all, then the second of all, and so on."""
    one = values_M.dtype.type(1)
    return np.packbits([values_M >> values_M.dtype.type(bit) & one for bit in range(k)]).tobytes() if k else b""


def unpack_bits(reader: ByteReader, count: int, k: int, dtype: Any) -> NDArray[Any]:
    """`count` (M) values of `k` bits."""
    bits_KM = np.unpackbits(reader.take(-(-count * k // 8)), count=count * k).reshape(k, count)
    values_M = np.zeros(count, dtype)
    for bit in range(k):
        values_M |= bits_KM[bit].astype(dtype) << dtype(bit)
    return values_M
