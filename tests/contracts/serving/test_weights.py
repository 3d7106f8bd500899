"""The contract of published weights, run over each blob store, by hosts with deltas and without."""

import json
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mortal_blobs import Died, MortalBlobs
from safetensors.numpy import load_file, save_file

from core.blobs import FsspecBlobs
from core.errors import WeightsError
from core.ids import base_ref
from core.model.beside import paths_beside
from core.model.weights_digest import digest_of_shards
from core.ports import WeightsRef
from serving.weights.published import BlobWeights

ONE, TWO = base_ref(1), base_ref(2)
FOLDER = "weights/00000001"
SHARD, MANIFEST = f"{FOLDER}/one.safetensors", f"{FOLDER}/manifest.json"
TENSORS: dict[str, np.ndarray] = {"a": np.arange(64, dtype=np.float32), "b": np.ones((2, 3), dtype=np.float16)}
STORES: dict[str, Callable[[Path], FsspecBlobs]] = {
    "directory": lambda path: FsspecBlobs(path / "blobs"),
    "memory": lambda path: FsspecBlobs(f"memory://{uuid.uuid4().hex}", cache=path / "cache"),
}


@pytest.fixture(params=STORES)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> FsspecBlobs:
    return STORES[request.param](tmp_path)


Host = Callable[[FsspecBlobs], BlobWeights]


@pytest.fixture(params=["whole", "deltas"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """Return a way to open the weights as a process on another host would."""
    numbers = count()
    if request.param == "whole":
        return BlobWeights
    return lambda blobs: BlobWeights(blobs, tmp_path / f"host-{next(numbers)}")


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return written(tmp_path / "shards", TENSORS)


def written(directory: Path, tensors: dict[str, np.ndarray]) -> list[Path]:
    """Write two shards, the second with one tensor."""
    directory.mkdir()
    one, two = directory / "one.safetensors", directory / "two.safetensors"
    save_file({"a": tensors["a"]}, one)
    save_file({"b": tensors["b"]}, two)
    return [one, two]


def test_what_is_published_is_opened(blobs: FsspecBlobs, host: Host, shards: list[Path]) -> None:
    ref = host(blobs).publish(TWO, shards, ONE)
    assert ref == WeightsRef(
        version=TWO,
        digest=digest_of_shards(shards),
        path="weights/00000002/manifest.json",
        parent=ONE,
        size=sum(shard.stat().st_size for shard in shards),
    )
    weights = host(blobs)  # as another process would
    opened = weights.open(ref)
    assert (opened.digest, opened.adapter) == (ref.digest, None)
    assert [path.read_bytes() for path in opened.shards] == [path.read_bytes() for path in shards]
    assert [path.name for path in opened.shards] == [path.name for path in shards]
    assert weights.open(ref) == opened
    assert weights.chain(ref) == [ref]


def test_again_with_the_same_content_is_the_same(
    blobs: FsspecBlobs, host: Host, shards: list[Path], tmp_path: Path
) -> None:
    """The digest covers tensors rather than files, so even another division into files writes nothing twice."""
    weights = host(blobs)
    ref = weights.publish(ONE, shards, None)
    files = blobs.list("")
    whole = tmp_path / "whole.safetensors"
    save_file(TENSORS, whole)
    assert weights.publish(ONE, shards, None) == ref
    assert weights.publish(ONE, [whole], None) == ref
    assert blobs.list("") == files
    assert len(host(blobs).open(ref).shards) == 2


def test_again_with_other_content_is_refused(
    blobs: FsspecBlobs, host: Host, shards: list[Path], tmp_path: Path
) -> None:
    weights = host(blobs)
    ref = weights.publish(ONE, shards, None)
    other = written(tmp_path / "other", {**TENSORS, "a": TENSORS["a"] + 1})
    with pytest.raises(WeightsError, match=f"{MANIFEST}: version 1 is published with digest"):
        weights.publish(ONE, other, None)
    assert load_file(host(blobs).open(ref).shards[0])["a"].tolist() == TENSORS["a"].tolist()


def test_versions_do_not_touch_each_other(blobs: FsspecBlobs, host: Host, shards: list[Path], tmp_path: Path) -> None:
    weights = host(blobs)
    one = weights.publish(ONE, shards, None)
    two = weights.publish(TWO, written(tmp_path / "other", {**TENSORS, "a": TENSORS["a"] + 1}), ONE)
    assert one.digest != two.digest
    assert [load_file(weights.open(ref).shards[0])["a"][0] for ref in (one, two)] == [0, 1]


def test_a_reference_to_other_content_opens_nothing(
    blobs: FsspecBlobs, host: Host, shards: list[Path], tmp_path: Path
) -> None:
    weights = host(blobs)
    one = weights.publish(ONE, shards, None)
    two = weights.publish(TWO, written(tmp_path / "other", {**TENSORS, "a": TENSORS["a"] + 1}), ONE)
    with pytest.raises(WeightsError, match=two.path):
        weights.open(WeightsRef(version=TWO, digest=one.digest, path=two.path))


# ------------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("path", [SHARD, f"{FOLDER}/two.safetensors", MANIFEST])
def test_a_missing_file_is_named(blobs: FsspecBlobs, host: Host, shards: list[Path], path: str) -> None:
    ref = host(blobs).publish(ONE, shards, None)
    blobs.delete(path)
    with pytest.raises(WeightsError, match=f"{path}: missing"):
        host(blobs).open(ref)


@pytest.mark.parametrize("path", [SHARD, MANIFEST])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_truncated_file_is_named(blobs: FsspecBlobs, host: Host, shards: list[Path], path: str, share: float) -> None:
    ref = host(blobs).publish(ONE, shards, None)
    content = blobs.get(path)
    blobs.put(path, content[: int(len(content) * share)])
    with pytest.raises(WeightsError, match=path):
        host(blobs).open(ref)


def test_any_flipped_bit_of_a_shard_is_found(blobs: FsspecBlobs, host: Host, shards: list[Path]) -> None:
    """Bits are flipped in the header, in the tensors, and in the padding that no digest covers."""
    ref = host(blobs).publish(ONE, shards, None)
    content = blobs.get(SHARD)
    for place in range(0, len(content), 7):
        blobs.put(SHARD, _flipped(content, place, place % 8))
        with pytest.raises(WeightsError, match=f"{SHARD}: corrupt"):
            host(blobs).open(ref)
    blobs.put(SHARD, content)
    assert host(blobs).open(ref).shards


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 2000), bit=st.integers(0, 7))
def test_a_flipped_bit_of_the_manifest_is_found_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    directory = tmp_path_factory.getbasetemp() / "flips"
    directory.mkdir(exist_ok=True)
    shards = [directory / "shards" / f"{name}.safetensors" for name in ("one", "two")]
    if not (directory / "shards").exists():
        written(directory / "shards", TENSORS)
    blobs = FsspecBlobs(f"memory://{uuid.uuid4().hex}", cache=directory / "cache")
    ref = BlobWeights(blobs).publish(ONE, shards, None)
    content = blobs.get(MANIFEST)
    blobs.put(MANIFEST, _flipped(content, place % len(content), bit))
    said = ""
    try:
        opened = BlobWeights(blobs).open(ref).shards
    except WeightsError as error:
        said = str(error)
    assert FOLDER in said or digest_of_shards(opened) == ref.digest


@pytest.mark.parametrize(
    "change",
    [
        {"shards": None},
        {"shards": [{}]},
        {"shards": [{"name": "../../up", "bytes": 1, "checksum": ""}]},
        {"shards": [{"name": "", "bytes": 1, "checksum": ""}]},
        {"shards": "one.safetensors"},
        {"shards": []},
        {"digest": None},
    ],
)
def test_a_manifest_that_makes_no_sense_is_named(
    blobs: FsspecBlobs, host: Host, shards: list[Path], change: dict[str, object]
) -> None:
    ref = host(blobs).publish(ONE, shards, None)
    blobs.put(MANIFEST, json.dumps(json.loads(blobs.get(MANIFEST)) | change).encode())
    with pytest.raises(WeightsError, match=FOLDER):
        host(blobs).open(ref)


@pytest.mark.parametrize("content", [b"[]", b"null", b"7", b"{}", b"\xff", b""])
def test_a_manifest_that_is_none_is_named(blobs: FsspecBlobs, host: Host, shards: list[Path], content: bytes) -> None:
    ref = host(blobs).publish(ONE, shards, None)
    blobs.put(MANIFEST, content)
    for use in (lambda: host(blobs).open(ref), lambda: host(blobs).publish(ONE, shards, None)):
        with pytest.raises(WeightsError, match=MANIFEST):
            use()


# ------------------------------------------------------------------------------------------------ all or nothing


@pytest.mark.parametrize("lives", [0, 1, 2])
def test_a_publication_that_was_cut_off_is_no_version(
    tmp_path: Path, host: Host, shards: list[Path], lives: int
) -> None:
    """A reader finds nothing, and the next attempt, with any content, becomes the version."""
    cut = MortalBlobs(tmp_path / "blobs")
    cut.lives = lives
    with pytest.raises(Died):
        host(cut).publish(ONE, shards, None)
    blobs = FsspecBlobs(tmp_path / "blobs")
    ref = WeightsRef(version=ONE, digest=digest_of_shards(shards), path=MANIFEST)
    with pytest.raises(WeightsError, match=f"{MANIFEST}: missing"):
        host(blobs).open(ref)
    other = written(tmp_path / "other", {**TENSORS, "a": TENSORS["a"] + 1})
    again = host(blobs).publish(ONE, other, None)
    assert load_file(host(blobs).open(again).shards[0])["a"][0] == 1


@pytest.mark.parametrize("broken", ["missing", "truncated"])
def test_a_shard_that_cannot_be_read_is_not_published(
    blobs: FsspecBlobs, host: Host, shards: list[Path], broken: str
) -> None:
    if broken == "missing":
        shards[1].unlink()
    else:
        shards[1].write_bytes(shards[1].read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"two\.safetensors"):
        host(blobs).publish(ONE, shards, None)
    assert blobs.list("") == []


# ------------------------------------------------------------------------------------------------ letting go


def test_what_is_discarded_is_gone_and_the_others_are_not(blobs: FsspecBlobs, host: Host, shards: list[Path]) -> None:
    weights = host(blobs)
    refs = [weights.publish(base_ref(number), shards, None) for number in (1, 2, 10_000_000, 100_000_000)]
    weights.open(refs[2])
    for ref in refs:
        for path in paths_beside(ref.version):
            blobs.put(path, b"beside")
    weights.discard(refs[2].version)
    weights.discard(refs[2].version)
    assert not any(map(blobs.exists, paths_beside(refs[2].version)))
    assert all(blobs.exists(path) for ref in (refs[0], refs[1], refs[3]) for path in paths_beside(ref.version))
    for reader in (weights, host(blobs)):
        with pytest.raises(WeightsError, match=f"{refs[2].path}: missing"):
            reader.open(refs[2])
        for ref in (refs[0], refs[1], refs[3]):
            assert digest_of_shards(reader.open(ref).shards) == ref.digest


def test_a_discard_that_was_cut_off_leaves_no_version(tmp_path: Path, host: Host, shards: list[Path]) -> None:
    """The manifest is deleted first."""
    blobs = MortalBlobs(tmp_path / "blobs")
    ref = host(blobs).publish(ONE, shards, None)
    blobs.lives = 2  # a mark, and the manifest
    with pytest.raises(Died):
        host(blobs).discard(ONE)
    with pytest.raises(WeightsError, match=f"{MANIFEST}: missing"):
        host(blobs).open(ref)
    host(FsspecBlobs(tmp_path / "blobs")).discard(ONE)
    assert blobs.list("") == []


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
