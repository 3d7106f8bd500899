"""The codec of a delta: lossless whatever the bits, small where little changed, and unharmed by damaged bytes.

Legend: N elements."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.weights.deltas.chunk import Bits, decode_chunk, encode_chunk

WORDS = {"F64": np.uint64, "F32": np.uint32, "BF16": np.uint16, "F16": np.uint16, "F8_E4M3": np.uint8, "I64": np.uint64}


def round_trip(parent_N: Bits, child_N: Bits) -> bytes:
    data = encode_chunk(parent_N, child_N)
    before = parent_N.copy()
    assert decode_chunk(data, parent_N).tobytes() == child_N.tobytes()
    assert parent_N.tobytes() == before.tobytes()
    return data


def weights(rng: np.random.Generator, dtype: str, count: int) -> Bits:
    """Return bits as in a checkpoint."""
    values, word = rng.normal(size=count) * 0.02, WORDS[dtype]
    match dtype:
        case "F64" | "F32" | "F16":
            return values.astype(f"f{np.dtype(word).itemsize}").view(word)
        case "BF16":
            return (values.astype("f4").view("u4") >> 16).astype("u2")
    return rng.integers(0, 100, count).astype(word)


def top(bits_N: Bits) -> Bits:
    """Return the bit of the sign."""
    return bits_N.dtype.type(1 << 8 * bits_N.itemsize - 1)


Change = Callable[[np.random.Generator, Bits], Bits]
CHANGES: dict[str, Change] = {
    "nothing": lambda rng, bits: bits,
    "up": lambda rng, bits: bits + bits.dtype.type(1),
    "one ulp": lambda rng, bits: bits + (2 * rng.integers(0, 2, len(bits)) - 1).astype(bits.dtype),
    "a few ulps": lambda rng, bits: bits + np.rint(rng.normal(size=len(bits)) * 9).astype("i8").astype(bits.dtype),
    "sign": lambda rng, bits: bits ^ top(bits),
    "anything": lambda rng, bits: rng.integers(0, 2**64, len(bits), np.uint64).astype(bits.dtype),
    "zero": lambda rng, bits: np.zeros_like(bits),
    "minus zero": lambda rng, bits: np.full_like(bits, top(bits)),
    "nan with a payload": lambda rng, bits: bits | ~top(bits) >> bits.dtype.type(1),
    "all ones": lambda rng, bits: np.full_like(bits, ~bits.dtype.type(0)),
    "denormal": lambda rng, bits: rng.integers(0, 4, len(bits)).astype(bits.dtype),
}


@settings(max_examples=300, deadline=None)
@given(
    dtype=st.sampled_from(sorted(WORDS)),
    change=st.sampled_from(sorted(CHANGES)),
    share=st.sampled_from([0.0, 0.001, 0.02, 0.2, 0.3, 0.6, 1.0]),
    count=st.sampled_from([1, 2, 63, 512, 3000, 40_000]),
    raw=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_change_comes_back(dtype: str, change: str, share: float, count: int, raw: bool, seed: int) -> None:
    """The bits are weights or arbitrary: NaN payloads, infinities, denormals, both zeros."""
    rng = np.random.default_rng(seed)
    parent_N = weights(rng, dtype, count)
    parent_N = CHANGES["anything"](rng, parent_N) if raw else parent_N
    child_N = np.where(rng.random(count) < share, CHANGES[change](rng, parent_N), parent_N)
    data = round_trip(parent_N, child_N)
    assert (data == b"") == (parent_N.tobytes() == child_N.tobytes())
    assert len(data) <= 1.001 * child_N.nbytes + count + 250, "more than what it would be itself"


@settings(max_examples=200)
@given(word=st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]), data=st.data())
def test_any_bits_become_any_bits(word: type, data: st.DataObject) -> None:
    bits = st.integers(0, 2 ** (8 * np.dtype(word).itemsize) - 1)
    pairs = np.array(data.draw(st.lists(st.tuples(bits, bits), min_size=1, max_size=40)), word)
    round_trip(pairs[:, 0].copy(), pairs[:, 1].copy())


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.04, 0.2, 0.45, 0.7, 1.0])
def test_small_steps_take_little_more_than_their_entropy(share: float) -> None:
    """The entropy is that of which elements changed, and a bit for the direction of each."""
    rng = np.random.default_rng(0)
    parent_N = weights(rng, "BF16", 400_000)
    changed_N = rng.random(len(parent_N)) < share
    child_N = np.where(changed_N, CHANGES["one ulp"](rng, parent_N), parent_N)
    shares = np.array([share, 1 - share]) if share < 1 else np.array([1.0])
    entropy_bytes = (-(shares * np.log2(shares)).sum() * len(parent_N) + changed_N.sum()) / 8
    assert len(round_trip(parent_N, child_N)) < 1.8 * entropy_bytes + 400


def test_steps_of_float32_leave_their_high_bytes_out() -> None:
    rng = np.random.default_rng(0)
    parent_N = weights(rng, "F32", 100_000)
    child_N = parent_N + np.rint(rng.normal(size=len(parent_N)) * 2000).astype("i8").astype("u4")
    assert len(round_trip(parent_N, child_N)) < 0.45 * child_N.nbytes


# ------------------------------------------------------------------------------------------------ damage


@settings(max_examples=400, deadline=None)
@given(
    dtype=st.sampled_from(["BF16", "F32", "F8_E4M3"]),
    place=st.integers(0, 10_000),
    byte=st.integers(0, 255),
    cut=st.booleans(),
    share=st.sampled_from([0.01, 0.2, 1.0]),
)
def test_what_was_never_encoded_is_an_error_or_other_weights(
    dtype: str, place: int, byte: int, cut: bool, share: float
) -> None:
    """Damaged bytes cause no crash and no other size; the digest detects the rest."""
    rng = np.random.default_rng(1)
    parent_N = weights(rng, dtype, 2000)
    child_N = np.where(rng.random(2000) < share, CHANGES["a few ulps"](rng, parent_N), parent_N)
    data = encode_chunk(parent_N, child_N)
    at = place % len(data)
    broken = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]
    try:
        found_N = decode_chunk(broken, parent_N)
    except ValueError:
        return
    assert (found_N.dtype, found_N.shape) == (parent_N.dtype, parent_N.shape)


@given(data=st.binary(min_size=1, max_size=60))
def test_noise_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"kind|bytes|frame|element"):
        decode_chunk(data, np.arange(700, dtype=np.uint16))


def test_bytes_too_many_are_an_error() -> None:
    parent_N = np.arange(700, dtype=np.uint16)
    data = encode_chunk(parent_N, parent_N + np.uint16(1))
    with pytest.raises(ValueError, match="3 bytes too many"):
        decode_chunk(data + b"abc", parent_N)
