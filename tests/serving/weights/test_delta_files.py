"""Deltas of whole checkpoints: any dtype, any shards, chains, damage, and bounded memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from delta_world import Checkpoint, random_weights, small_step, write, write_sharded

from core.errors import WeightsError
from core.model.weights_digest import checksum_of, digest_of_shards
from serving.weights.deltas import checkpoint
from serving.weights.deltas.checkpoint import OpenFiles
from serving.weights.deltas.delta import DeltaStep, Encoded, apply, encode
from serving.weights.deltas.finite import check_finite

SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "embed": ("BF16", (300, 16)),
    "layer.weight": ("F8_E4M3", (64, 64)),
    "layer.weight_scale_inv": ("F32", (1, 1)),
    "layer.scale": ("F8_E8M0", (64, 2)),
    "e5m2": ("F8_E5M2", (7, 11)),
    "half": ("F16", (33,)),
    "double": ("F64", (5, 5)),
    "counts": ("I64", (9,)),
    "flags": ("BOOL", (70,)),
    "packed": ("F4", (40,)),
    "unheard of": ("Q3_K", (55,)),
    "nothing": ("BF16", (0, 8)),
    "scalar": ("F32", ()),
}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def tensors(rng: np.random.Generator) -> Checkpoint:
    return {name: random_weights(rng, dtype, shape) for name, (dtype, shape) in SHAPES.items()}


def applied(base: list[Path], steps: list[DeltaStep], directory: Path) -> list[Path]:
    directory.mkdir()
    digest = apply(base, steps, directory)
    made = [directory / path.name for path in base]
    assert digest == digest_of_shards(made)
    return made


@pytest.mark.parametrize("chunk", [1 << 20, 100])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_every_dtype_comes_back_file_by_file(
    tmp_path: Path,
    rng: np.random.Generator,
    tensors: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    shards: int,
    share: float,
) -> None:
    """Headers are restored, too; a tensor may take one chunk or many."""
    monkeypatch.setattr(checkpoint, "CHUNK", chunk)
    parent = write_sharded(tmp_path / "parent", tensors, shards)
    child = write_sharded(tmp_path / "child", small_step(rng, tensors, share), shards)
    encoded = encode(parent, child, tmp_path / "delta")
    everything = {name for name in tensors if name != "nothing"}
    assert set(encoded.tensors) == (set() if share == 0 else everything) or share == 0.05
    assert encoded.digest == digest_of_shards(child)
    made = applied(parent, [DeltaStep(tmp_path / "delta", encoded.tensors, "delta")], tmp_path / "made")
    assert [path.read_bytes() for path in made] == [path.read_bytes() for path in child]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child", "delta", "made", "parent"]


def test_a_delta_is_what_changed_and_nothing_else(
    tmp_path: Path, rng: np.random.Generator, tensors: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only the last chunk of a tensor changed."""
    monkeypatch.setattr(checkpoint, "CHUNK", 100)
    parent = write(tmp_path / "parent", tensors)
    dtype, shape, bits = tensors["embed"]
    bits = bits.copy()
    bits[-1] ^= 1
    child = write(tmp_path / "child", tensors | {"embed": (dtype, shape, bits)})
    file, changed, _ = encode([parent], [child], tmp_path / "delta")
    assert list(changed) == ["embed"]
    assert file.bytes == changed["embed"].bytes == (tmp_path / "delta").stat().st_size < 300
    assert (file.name, file.checksum) == ("delta", checksum_of(tmp_path / "delta"))
    made = applied([parent], [DeltaStep(tmp_path / "delta", changed, "delta")], tmp_path / "made")
    assert made[0].read_bytes() == child.read_bytes()


def test_a_chain_is_applied_in_one_pass(tmp_path: Path, rng: np.random.Generator, tensors: Checkpoint) -> None:
    files, steps = [write(tmp_path / "0" / "model", tensors)], []
    for number in range(1, 6):
        tensors = tensors | small_step(rng, dict(list(tensors.items())[number : number + 4]), share=0.3)
        files.append(write(tmp_path / str(number) / "model", tensors))
        delta = tmp_path / f"delta-{number}"
        steps.append(DeltaStep(delta, encode([files[-2]], [files[-1]], delta).tensors, "delta"))
    (made,) = applied([files[0]], steps, tmp_path / "made")
    assert made.read_bytes() == files[-1].read_bytes()


# ------------------------------------------------------------------------------------------------ what does not fit


@pytest.fixture
def pair(tmp_path: Path, rng: np.random.Generator, tensors: Checkpoint) -> tuple[Path, Encoded]:
    """Return a parent, and a delta from it in the file `delta`."""
    parent = write(tmp_path / "parent", tensors)
    child = write(tmp_path / "child", small_step(rng, tensors))
    return parent, encode([parent], [child], tmp_path / "delta")


Pair = tuple[Path, Encoded]


def test_upon_another_parent_it_is_refused(tmp_path: Path, pair: Pair, tensors: Checkpoint) -> None:
    """One other bit in the parent is enough, and the tensor is named."""
    dtype, shape, bits = tensors["embed"]
    bits = bits.copy()
    bits[77] ^= 1
    other = write(tmp_path / "other", tensors | {"embed": (dtype, shape, bits)})
    (tmp_path / "made").mkdir()
    with pytest.raises(WeightsError, match=r"delta: tensor embed is not what was published"):
        apply([other], [DeltaStep(tmp_path / "delta", pair[1].tensors, "delta")], tmp_path / "made")


@pytest.mark.parametrize("broken", ["shape", "missing", "dtype"])
def test_upon_a_parent_of_another_shape_it_is_refused(
    tmp_path: Path, pair: Pair, tensors: Checkpoint, broken: str
) -> None:
    dtype, _, bits = tensors.pop("embed")
    match broken:
        case "shape":
            tensors["embed"] = (dtype, (299, 16), bits[16:])
        case "dtype":
            tensors["embed"] = ("F32", (150, 16), bits.view(np.uint32))
    other = write(tmp_path / "other", tensors)
    (tmp_path / "made").mkdir()
    with pytest.raises(WeightsError, match="delta: tensor embed"):
        apply([other], [DeltaStep(tmp_path / "delta", pair[1].tensors, "delta")], tmp_path / "made")


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("length", [-1, 1, 40])
def test_a_stream_of_another_length_is_refused(tmp_path: Path, pair: Pair, place: str, length: int) -> None:
    """The file was written this way, and its manifest says so."""
    parent, (_, tensors, _) = pair
    delta = tmp_path / "delta"
    name = min(tensors) if place == "first" else max(tensors)
    end = tensors[name].bytes if place == "first" else delta.stat().st_size
    content = delta.read_bytes()
    delta.write_bytes(content[: end + min(length, 0)] + b"\0" * max(length, 0) + content[end:])
    entry = msgspec.structs.replace(tensors[name], bytes=tensors[name].bytes + length)
    (tmp_path / "made").mkdir()
    with pytest.raises(WeightsError, match=f"delta: tensor {name}"):
        apply([parent], [DeltaStep(delta, tensors | {name: entry}, "delta")], tmp_path / "made")


def test_a_file_that_is_cut_is_named(tmp_path: Path, tensors: Checkpoint) -> None:
    whole, cut = write(tmp_path / "whole", tensors), write(tmp_path / "cut", tensors)
    cut.write_bytes(cut.read_bytes()[:-1])
    for parent, child in ((whole, cut), (cut, whole)):
        with pytest.raises(WeightsError, match="cut: truncated, 1 bytes are missing"):
            encode([parent], [child], tmp_path / "delta")


def test_a_file_that_shrinks_under_way_is_named(
    tmp_path: Path, tensors: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = write(tmp_path / "parent", tensors), write(tmp_path / "child", tensors)
    after_the_headers = OpenFiles.__init__

    def shrink(self: OpenFiles, *given: Any) -> None:
        after_the_headers(self, *given)
        child.write_bytes(child.read_bytes()[:-1])

    monkeypatch.setattr(OpenFiles, "__init__", shrink)
    with pytest.raises(WeightsError, match="child: truncated, 1 bytes are missing"):
        encode([parent], [child], tmp_path / "delta")


# ------------------------------------------------------------------------------------------------ finiteness


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        ("F64", [0x7FF0 << 48, 0xFFF8 << 48, 0x7FF0 << 48 | 1]),
        ("F32", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001]),
        ("F16", [0x7C00, 0xFC00, 0x7E00, 0xFC01]),
        ("BF16", [0x7F80, 0xFF80, 0x7FC0, 0xFF81]),
        ("F8_E5M2", [0x7C, 0xFC, 0x7F]),
        ("F8_E4M3", [0x7F, 0xFF]),
        ("F8_E4M3FNUZ", [0x80]),
        ("F8_E5M2FNUZ", [0x80]),
        ("F8_E8M0", [0xFF]),
    ],
)
def test_what_is_no_number_is_named(tmp_path: Path, dtype: str, bad: list[int]) -> None:
    """Every other bit pattern is accepted."""
    word = np.dtype(f"u{ {'F64': 8, 'F32': 4, 'F16': 2, 'BF16': 2}.get(dtype, 1) }").type
    fine = np.array([0, 1, 0x7F7F if word == np.uint16 and dtype == "BF16" else 0x3B], word)
    if word == np.uint8:
        fine = np.array([one for one in range(256) if not _is_bad(dtype, one)], word)
    good = write(tmp_path / "good", {"a": ("F32", (2,), np.zeros(2, np.uint32)), "v": (dtype, (len(fine),), fine)})
    check_finite([good])
    for bits in bad:
        broken = write(tmp_path / "broken", {"w": (dtype, (4,), np.array([0, 1, bits, 2], word))})
        with pytest.raises(WeightsError, match="broken: tensor w is not finite at element 2"):
            check_finite([good, broken])


def _is_bad(dtype: str, bits: int) -> bool:
    match dtype:
        case "F8_E5M2":
            return bits & 0x7F >= 0x7C
        case "F8_E4M3":
            return bits & 0x7F == 0x7F
        case "F8_E8M0":
            return bits == 0xFF
    return bits == 0x80


def test_integers_are_numbers_whatever_their_bits(tmp_path: Path) -> None:
    ones = np.full(4, 0xFFFF, np.uint16)
    check_finite([write(tmp_path / "x", {"i": ("I16", (4,), ones), "u": ("U16", (4,), ones)})])


# ------------------------------------------------------------------------------------------------ memory

_MEASURE = r"""
import json, re, sys
from pathlib import Path
from serving.weights.deltas import checkpoint
from serving.weights.deltas.checkpoint import OpenFiles
from serving.weights.deltas.delta import DeltaStep, Encoded, apply, encode
from serving.weights.deltas.finite import check_finite
from serving.weights.sample import promised_share
from core.model.weights_digest import digest_of_shards

def peak():  # ru_maxrss would begin with that of the process that started this one
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

root = Path(sys.argv[1])
checkpoint.CHUNK >>= int(sys.argv[2])
start = peak()
pair = [root / "parent"], [root / "child"]
assert promised_share(*pair) < 0.5
encoded = encode(*pair, root / "delta")
(root / "made").mkdir()
assert apply(pair[0], [DeltaStep(root / "delta", encoded.tensors, "delta")], root / "made") == digest_of_shards(pair[1])
assert encoded.digest == digest_of_shards(pair[1])
check_finite(pair[1])
print(json.dumps(peak() - start))
"""


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """Each thread needs a few chunks: with an eighth of the usual chunk, a tensor of 128 MiB takes under 16 MiB."""
    rng = np.random.default_rng(0)
    chunk = random_weights(rng, "BF16", (1 << 22,))[2]
    moved = small_step(rng, {"x": ("BF16", (1 << 22,), chunk)})["x"][2]
    shape = (16, 1 << 22)
    for name, bits in (("parent", chunk), ("child", moved)):
        header = json.dumps({"x": {"dtype": "BF16", "shape": shape, "data_offsets": [0, 16 * chunk.nbytes]}}).encode()
        with (tmp_path / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _ in range(16):
                file.write(bits.tobytes())
    command = [sys.executable, "-c", _MEASURE, str(tmp_path), "3"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) < 16 << 20
