"""The coders of a delta: lossless, in about as few bytes as possible.

Legend: N elements, M members."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from serving.weights.deltas.chunk import ENCODINGS, decode_chunk, encode_chunk
from serving.weights.deltas.dtypes import Bits, Kind, kind_of
from serving.weights.deltas.integers import decode_steps, encode_steps
from serving.weights.deltas.magnitudes import divide, find_bounds
from serving.weights.deltas.stream import ByteReader, number
from serving.weights.deltas.subsets import decode_subset, encode_mask, encode_subset

FLOATS = ("F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2")
DTYPES = (*FLOATS, "I64", "I32", "U16", "I8", "U8", "BOOL", "F8_E8M0", "F4")
WORDS = (np.uint8, np.uint16, np.uint32, np.uint64)


def entropy_bytes(counts: NDArray[np.int64]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum() * counts.sum() / 8)


# ------------------------------------------------------------------------------------------------ subsets


def decoded_subset(data: bytes, size: int) -> NDArray[np.int64]:
    reader = ByteReader(data)
    found = decode_subset(reader, size)
    assert reader.left == 0
    return found


@given(mask=st.lists(st.booleans(), min_size=1, max_size=300))
@example(mask=[False])
@example(mask=[True])
def test_any_subset_comes_back(mask: list[bool]) -> None:
    positions = np.flatnonzero(mask)
    assert decoded_subset(encode_subset(positions, len(mask)), len(mask)).tolist() == positions.tolist()
    assert decoded_subset(encode_mask(np.array(mask)), len(mask)).tolist() == positions.tolist()


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.001, 0.02, 0.2, 0.45, 0.5, 0.7, 0.97, 0.9999, 1.0])
@pytest.mark.parametrize("size", [1, 7, 1000, 200_000])
def test_a_random_subset_takes_about_its_entropy(share: float, size: int) -> None:
    positions = np.flatnonzero(np.random.default_rng(size).random(size) < share)
    data = encode_subset(positions, size)
    assert decoded_subset(data, size).tolist() == positions.tolist()
    assert len(data) <= 1.05 * entropy_bytes(np.array([len(positions), size - len(positions)])) + 6


def test_members_that_gather_take_less_than_scattered_ones() -> None:
    """Whole rows change or stay the same."""
    size = 1 << 18
    mask = np.random.default_rng(0).random(size) < 0.1
    mask.reshape(64, -1)[::3] = False
    mask.reshape(64, -1)[:50] = False
    positions = np.flatnonzero(mask)
    data = encode_subset(positions, size)
    assert decoded_subset(data, size).tolist() == positions.tolist()
    alone = np.flatnonzero(mask.reshape(64, -1)[50:][::3])
    busy = size * 14 // 64 * 2 // 3
    assert len(data) <= 1.08 * entropy_bytes(np.array([len(positions), busy - len(positions)])), len(alone)


# ------------------------------------------------------------------------------------------------ steps


@settings(max_examples=300)
@given(
    word=st.sampled_from(WORDS),
    least=st.integers(0, 1),
    seed=st.integers(0, 1000),
    count=st.sampled_from([0, 1, 2, 9, 300, 5000]),
    spread=st.sampled_from([0.3, 1.0, 3.0, 40.0, 3e4, 1e18]),
)
def test_any_steps_come_back(word: type, least: int, seed: int, count: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    most = float(2 ** (8 * np.dtype(word).itemsize - 1) - 1)
    lengths = np.minimum(least + np.floor(rng.exponential(spread, count)), most).astype(word)
    steps = np.where(rng.random(count) < 0.4, -lengths, lengths).astype(word)
    reader = ByteReader(encode_steps(steps, least))
    assert decode_steps(reader, count, least, word).tolist() == steps.tolist()
    assert reader.left == 0


def test_the_longest_steps_come_back() -> None:
    """One step of two million may be half of the range."""
    for word in WORDS:
        half = 1 << 8 * np.dtype(word).itemsize - 1
        for steps in ([half], [half, half - 1], [1] * 4000 + [half, half + 1]):
            data = encode_steps(np.array(steps, word), 1)
            assert decode_steps(ByteReader(data), len(steps), 1, word).tolist() == steps


@pytest.mark.parametrize("up", [0.5, 1.0])
def test_steps_of_one_take_a_bit_for_their_direction(up: float) -> None:
    steps = np.where(np.random.default_rng(0).random(80_000) < up, 1, -1).astype(np.int16).view(np.uint16)
    assert len(encode_steps(steps, 1)) <= (10_010 if up == 0.5 else 10)


# ------------------------------------------------------------------------------------------------ classes


@given(seed=st.integers(0, 100), share=st.sampled_from([0.0005, 0.02, 0.3, 0.9]), size=st.sampled_from([600, 20_000]))
def test_classes_part_all_elements_by_magnitude(seed: int, share: float, size: int) -> None:
    rng, kind = np.random.default_rng(seed), kind_of("F32")
    magnitudes = np.abs(rng.normal(size=size) * 0.02).astype(np.float32).view(np.uint32)
    changed = everything = np.flatnonzero(rng.random(size) < share)
    found, last = [], 2**32
    bounds = find_bounds(magnitudes, kind)
    assert len(bounds) > 2
    for octaves in divide(magnitudes, bounds, kind):
        ranks, where, changed = octaves.split(changed)
        assert octaves.select(ranks).tolist() == where.tolist()
        members = octaves.select(np.arange(octaves.size))
        assert len(magnitudes[members]) == 0 or magnitudes[members].max() < last
        last = min(magnitudes[members], default=last)
        found.append((where, members))
    assert sorted(np.concatenate([where for where, _ in found])) == everything.tolist()
    assert sorted(np.concatenate([members for _, members in found])) == list(range(size))


# ------------------------------------------------------------------------------------------------ chunks


def round_trip(parent: Bits, child: Bits, kind: Kind) -> bytes:
    data = encode_chunk(parent, child, kind)
    before = parent.copy()
    assert decode_chunk(data, parent, kind).tobytes() == child.tobytes()
    assert parent.tobytes() == before.tobytes()
    return data


Change = Callable[[np.random.Generator, Bits, Kind], Bits]


def weights(rng: np.random.Generator, dtype: str, count: int) -> Bits:
    """Return bits as in a checkpoint, with the last ones cut off."""
    kind, normal = kind_of(dtype), rng.normal(size=count)
    match dtype:
        case "F64" | "F32" | "F16":
            return (normal * 0.02).astype(f"f{kind.itemsize}").view(kind.bits)
        case "BF16":
            return ((normal * 0.02).astype("f4").view("u4") >> 16).astype("u2")
        case "F8_E5M2":
            return (normal.astype("f2").view("u2") >> 8).astype("u1")
        case "F8_E4M3":
            fraction, exponent = np.frexp(np.abs(normal))
            magnitude = np.maximum(exponent + 9, 0) << 3 | ((fraction * 16).astype("i8") & 7)
            return (magnitude | (normal < 0) << 7).astype("u1")
    return rng.integers(0, 100, count).astype(kind.bits)


CHANGES: dict[str, Change] = {
    "nothing": lambda rng, bits, kind: bits,
    "up": lambda rng, bits, kind: bits + kind.bits(1),
    "one ulp": lambda rng, bits, kind: bits + (2 * rng.integers(0, 2, len(bits)) - 1).astype(kind.bits),
    "a few ulps": lambda rng, bits, kind: bits + np.rint(rng.normal(size=len(bits)) * 9).astype("i8").astype(kind.bits),
    "sign": lambda rng, bits, kind: bits ^ kind.top,
    "anything": lambda rng, bits, kind: rng.integers(0, 2**64, len(bits), np.uint64).astype(kind.bits),
    "zero": lambda rng, bits, kind: bits & kind.bits(0),
    "minus zero": lambda rng, bits, kind: bits & kind.bits(0) | kind.top,
    "nan": lambda rng, bits, kind: bits | kind.bits(int(kind.magnitude) >> 1 | int(kind.magnitude)),
    "all ones": lambda rng, bits, kind: bits | ~kind.bits(0),
    "denormal": lambda rng, bits, kind: rng.integers(0, 4, len(bits)).astype(kind.bits),
}


@settings(max_examples=400, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    change=st.sampled_from(sorted(CHANGES)),
    share=st.sampled_from([0.0, 0.001, 0.02, 0.3, 0.6, 1.0]),
    count=st.sampled_from([1, 2, 63, 511, 512, 3000, 40_000]),
    raw=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_change_comes_back(dtype: str, change: str, share: float, count: int, raw: bool, seed: int) -> None:
    """The bits are weights or arbitrary: NaN payloads, infinities, denormals, both zeros."""
    rng, kind = np.random.default_rng(seed), kind_of(dtype)
    parent = CHANGES["anything"](rng, np.empty(count, kind.bits), kind) if raw else weights(rng, dtype, count)
    child = np.where(rng.random(count) < share, CHANGES[change](rng, parent, kind), parent)
    data = round_trip(parent, child, kind)
    assert (data == b"") == (parent.tobytes() == child.tobytes())
    assert len(data) <= child.nbytes + count / 8 + 40, "more than what it would be itself"


@settings(max_examples=200)
@given(dtype=st.sampled_from(DTYPES), data=st.data())
def test_any_bits_become_any_bits(dtype: str, data: st.DataObject) -> None:
    kind = kind_of(dtype)
    word = st.integers(0, 2 ** (8 * kind.itemsize) - 1)
    pairs = np.array(data.draw(st.lists(st.tuples(word, word), min_size=1, max_size=40)), kind.bits)
    round_trip(pairs[:, 0].copy(), pairs[:, 1].copy(), kind)


@pytest.mark.parametrize("dtype", FLOATS)
def test_small_steps_of_small_weights_cost_less_than_positions_alone(dtype: str) -> None:
    """Classes pay off here: one step of equal size changes small weights most, and by several units.

    Without classes, the positions of the changes alone would cost more than everything does with them."""
    rng, kind = np.random.default_rng(0), kind_of(dtype)
    parent = weights(rng, dtype, 200_000)
    magnitudes = (parent & kind.magnitude).astype(np.float64)
    octave = np.floor(magnitudes / 2.0**kind.mantissa_bits) if kind.mantissa_bits else magnitudes
    change = np.minimum(1.0, 0.002 * 2.0 ** (octave.max() - octave)) > rng.random(len(parent))
    child = parent + change * (2 * rng.integers(0, 2, len(parent)) - 1).astype(kind.bits)
    data = round_trip(parent, child.astype(kind.bits), kind)
    count = int(change.sum())
    assert len(data) - count / 8 < 0.85 * entropy_bytes(np.array([count, len(parent) - count]))


def test_steps_or_values_whichever_are_fewer() -> None:
    rng, kind = np.random.default_rng(0), kind_of("BF16")
    parent = weights(rng, "BF16", 50_000)
    for change, encoding in (("one ulp", "steps"), ("zero", "values"), ("anything", "values")):
        data = round_trip(parent, CHANGES[change](rng, parent, kind), kind)
        assert ENCODINGS[data[0]] == encoding, change
        assert len(data) < {"one ulp": 7000, "zero": 100, "anything": 100_100}[change]


# ------------------------------------------------------------------------------------------------ damage


@settings(max_examples=500, deadline=None)
@given(
    dtype=st.sampled_from(("BF16", "F32", "U8")),
    place=st.integers(0, 10_000),
    byte=st.integers(0, 255),
    cut=st.booleans(),
    share=st.sampled_from([0.01, 0.5, 1.0]),
)
def test_what_was_never_encoded_is_an_error_or_other_weights(
    dtype: str, place: int, byte: int, cut: bool, share: float
) -> None:
    """Damaged bytes cause no crash and no other size; the digest detects the rest."""
    rng, kind = np.random.default_rng(1), kind_of(dtype)
    parent = weights(rng, dtype, 2000)
    child = np.where(rng.random(2000) < share, CHANGES["a few ulps"](rng, parent, kind), parent)
    data = encode_chunk(parent, child, kind)
    at = place % len(data)
    broken = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]
    try:
        found = decode_chunk(broken, parent, kind)
    except (ValueError, IndexError):
        return
    assert (found.dtype, found.shape) == (parent.dtype, parent.shape)


@given(data=st.binary(min_size=1, max_size=60))
def test_noise_is_an_error_or_other_weights(data: bytes) -> None:
    parent = np.arange(700, dtype=np.uint16)
    try:
        found = decode_chunk(data, parent, kind_of("BF16"))
    except (ValueError, IndexError):
        return
    assert (found.dtype, found.shape) == (parent.dtype, parent.shape)


@given(st.lists(st.integers(0, 2**70), max_size=5))
def test_numbers_of_any_size_come_back(values: list[int]) -> None:
    reader = ByteReader(b"".join(map(number, values)))
    assert [reader.number() for _ in values] == values
    with pytest.raises(ValueError, match="0 are left"):
        reader.number()
