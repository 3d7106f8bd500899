"""The digest depends on the tensors, not on the files that hold them; broken files are named."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from core.blobs import pieces_of
from core.errors import WeightsError
from core.model.weights_digest import PassingDigest, checksum_of, digest_of_shards

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros((0, 4), dtype=np.float16),
    "c": np.array(7, dtype=np.int64),
}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_shards_and_their_order_do_not_matter(whole: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    save_file({"c": TENSORS["c"]}, one, metadata={"format": "pt"})
    save_file({"b": TENSORS["b"], "a": TENSORS["a"]}, two)
    digests = {digest_of_shards(shards) for shards in ([whole], [one, two], [two, one])}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {**TENSORS, "a": TENSORS["a"].reshape(3, 2)},
        {**TENSORS, "a": TENSORS["a"].view(np.int32)},
        {**TENSORS, "a": np.nextafter(TENSORS["a"], np.float32(9))},
        {"a": TENSORS["a"], "b": TENSORS["b"], "d": TENSORS["c"]},
        {"a": TENSORS["a"], "c": TENSORS["c"]},
    ],
    ids=["shape", "dtype", "value", "name", "missing"],
)
def test_any_change_changes_it(whole: Path, tmp_path: Path, changed: dict[str, np.ndarray]) -> None:
    save_file(changed, tmp_path / "changed.safetensors")
    assert digest_of_shards([tmp_path / "changed.safetensors"]) != digest_of_shards([whole])


def test_a_truncated_file_is_named_wherever_it_ends(whole: Path) -> None:
    content = whole.read_bytes()
    for length in range(len(content)):
        whole.write_bytes(content[:length])
        with pytest.raises(WeightsError, match=r"model\.safetensors"):
            digest_of_shards([whole])


@settings(max_examples=100)
@given(garbage=st.binary(max_size=64))
def test_garbage_is_named(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.safetensors"
    path.write_bytes(garbage)
    with pytest.raises(WeightsError, match=r"garbage\.safetensors"):
        digest_of_shards([path])


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": None},
        {"a": {"dtype": "F32", "shape": [1]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
    ],
)
def test_a_header_that_makes_no_sense_is_named(tmp_path: Path, header: object) -> None:
    text = json.dumps(header).encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 16)
    with pytest.raises(WeightsError, match=r"odd\.safetensors"):
        digest_of_shards([path])


def test_a_tensor_in_two_shards_and_a_missing_shard_are_named(whole: Path, tmp_path: Path) -> None:
    save_file({"a": TENSORS["a"]}, tmp_path / "again.safetensors")
    with pytest.raises(WeightsError, match=r"again\.safetensors: tensor a stands in two shards"):
        digest_of_shards([whole, tmp_path / "again.safetensors"])
    with pytest.raises(WeightsError, match=r"nothing\.safetensors: cannot be read"):
        digest_of_shards([tmp_path / "nothing.safetensors"])


def test_a_shard_that_vanishes_after_its_header_was_read_is_named(whole: Path) -> None:
    """A shard vanishes when another process drops its version."""

    def vanishing() -> Iterator[Path]:
        yield whole
        whole.unlink()  # what asks for the next shard has read the header of this one

    with pytest.raises(WeightsError, match=r"model\.safetensors.*No such file"):
        digest_of_shards(vanishing())


@settings(max_examples=60, deadline=None)
@given(
    places=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    dtypes=st.lists(st.sampled_from(["float32", "float16", "int8"]), min_size=6, max_size=6),
    rows=st.lists(st.sampled_from([0, 1, 7, 40]), min_size=6, max_size=6),
    piece=st.sampled_from([1, 3, 64, 1 << 20]),
)
def test_passing_by_it_is_the_same_digest(
    tmp_path_factory: pytest.TempPathFactory, places: list[int], dtypes: list[str], rows: list[int], piece: int
) -> None:
    """Whatever the order of tensors, their sizes, and the size of the pieces."""
    directory = tmp_path_factory.mktemp("passing")
    tensors = {name: np.full((n, 3), n + 1, dtype) for name, n, dtype in zip("abcdef", rows, dtypes, strict=True)}
    shards = []
    for shard in sorted(set(places)):
        shards.append(directory / f"model-{shard}.safetensors")
        save_file({name: tensors[name] for name, at in zip(tensors, places, strict=True) if at == shard}, shards[-1])
    passing = PassingDigest(shards)
    for path in shards:
        content = memoryview(path.read_bytes())
        for at in range(0, len(content), piece):
            passing.see(path, at, content[at : at + piece])
    assert passing.finish() == digest_of_shards(shards)


def test_of_one_dtype_in_one_file_nothing_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_file({name: np.ones((n, 5), np.float32) for n, name in enumerate("cab", 1)}, path)
    expected = digest_of_shards([path])
    passing = PassingDigest([path])
    passing.see(path, 0, memoryview(path.read_bytes()))
    monkeypatch.setattr("core.model.weights_digest.digest_of_shards", None)
    assert passing.finish() == expected


@settings(max_examples=30, deadline=None)
@given(size=st.sampled_from([0, 1, 100, 1 << 20, (1 << 20) + 5]), start=st.integers(0, 50), length=st.integers(0, 200))
def test_pieces_are_the_file(tmp_path_factory: pytest.TempPathFactory, size: int, start: int, length: int) -> None:
    path = tmp_path_factory.getbasetemp() / "pieces"
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    path.write_bytes(content)
    assert b"".join(bytes(piece) for piece in pieces_of(path)) == content
    assert b"".join(bytes(piece) for piece in pieces_of(path, start, length)) == content[start : start + length]
    assert checksum_of(path) == blake3(content).hexdigest()
