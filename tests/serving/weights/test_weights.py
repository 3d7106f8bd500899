"""Weights as the engine and the learner use them: the digest depends on tensors, not on their division into files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from core.blobs import FsspecBlobs
from core.errors import WeightsError
from core.ids import base_ref
from core.model.weights_digest import digest_of_shards
from serving.weights.published import BlobWeights

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny" / "model.safetensors"
NAMES = tuple("abcdef")


@settings(max_examples=15, deadline=None)
@given(places=st.lists(st.integers(0, 2), min_size=len(NAMES), max_size=len(NAMES)))
def test_the_digest_does_not_depend_on_the_shards(tmp_path_factory: pytest.TempPathFactory, places: list[int]) -> None:
    directory = tmp_path_factory.mktemp("sharding")
    tensors = {name: np.full((number, 2), number, dtype=np.float32) for number, name in enumerate(NAMES)}
    whole = directory / "model.safetensors"
    save_file(tensors, whole)
    shards = []
    for shard in sorted(set(places)):
        path = directory / f"model-{shard}.safetensors"
        save_file({name: tensors[name] for name, place in zip(NAMES, places, strict=True) if place == shard}, path)
        shards.append(path)
    weights = BlobWeights(FsspecBlobs(directory / "blobs"))
    one = weights.publish(base_ref(1), [whole], None)
    two = weights.publish(base_ref(2), shards, base_ref(1))
    assert one.digest == two.digest
    found = {name: tensor for path in weights.open(two).shards for name, tensor in load_file(path).items()}
    assert {name: tensor.tolist() for name, tensor in found.items()} == {n: t.tolist() for n, t in tensors.items()}


def test_the_shipped_weights_go_in_and_come_out(tmp_path: Path) -> None:
    ref = BlobWeights(FsspecBlobs(tmp_path)).publish(base_ref(1), [TINY], None)
    (opened,) = BlobWeights(FsspecBlobs(tmp_path)).open(ref).shards
    assert opened.read_bytes() == TINY.read_bytes()
    assert ref.digest == digest_of_shards([TINY])


def test_a_version_is_verified_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verified files are not read again unless they changed since; another process reads all of them."""
    weights = BlobWeights(FsspecBlobs(tmp_path))
    ref = weights.publish(base_ref(1), [TINY], None)
    (opened,) = weights.open(ref).shards
    with monkeypatch.context() as patch:
        patch.setattr("serving.weights.published.digest_of_version", None)
        patch.setattr("serving.weights.published.checksum_of", None)
        assert weights.open(ref).shards == [opened]
    content = bytearray(opened.read_bytes())
    content[-1] ^= 1
    opened.write_bytes(content)
    for reader in (weights, BlobWeights(FsspecBlobs(tmp_path))):
        with pytest.raises(WeightsError, match=r"model\.safetensors: corrupt"):
            reader.open(ref)


def test_a_publication_leaves_the_given_files_alone(tmp_path: Path) -> None:
    before = TINY.read_bytes()
    weights = BlobWeights(FsspecBlobs(tmp_path))
    weights.publish(base_ref(1), [TINY], None)
    weights.discard(base_ref(1))
    assert TINY.read_bytes() == before
