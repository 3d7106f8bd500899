"""The digest depends on the tensors, not on the files that hold them; broken files are named."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from core.errors import WeightsError
from core.model.weights_digest import digest_of_shards

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
