"""The contract of published adapters: what is said of them is what was published, and covered by the digest."""

import json
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pytest
from mortal_blobs import Died, MortalBlobs
from safetensors.numpy import load_file, save_file

from core.blobs import FsspecBlobs
from core.errors import WeightsError
from core.ids import base_ref
from core.model.adapters import digest_of_version
from core.model.weights_digest import digest_of_shards
from core.ports import AdapterConfig, Opened, WeightsRef
from serving.weights.published import BlobWeights

ONE, TWO = base_ref(1), base_ref(2)
MANIFEST, FILE = "weights/00000002/manifest.json", "weights/00000002/adapter.safetensors"
CONFIG = AdapterConfig(base_digest="ab" * 32, rank=2, alpha=4.0)
TENSORS = {"m.lora_A.weight": np.arange(16, dtype=np.float32).reshape(2, 8), "m.lora_B.weight": np.ones((4, 2), "f4")}
STORES: dict[str, Callable[[Path], FsspecBlobs]] = {
    "directory": lambda path: FsspecBlobs(path / "blobs"),
    "memory": lambda path: FsspecBlobs(f"memory://{uuid.uuid4().hex}", cache=path / "cache"),
}
Host = Callable[[FsspecBlobs], BlobWeights]


@pytest.fixture(params=STORES)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> FsspecBlobs:
    return STORES[request.param](tmp_path)


@pytest.fixture(params=["without a cache", "with a cache"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    numbers = count()
    if request.param == "without a cache":
        return BlobWeights
    return lambda blobs: BlobWeights(blobs, tmp_path / f"host-{next(numbers)}")


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return written(tmp_path / "adapter.safetensors", TENSORS)


def written(path: Path, tensors: dict[str, np.ndarray]) -> list[Path]:
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    return [path]


def test_what_is_published_is_opened_as_the_adapter_that_it_is(
    blobs: FsspecBlobs, host: Host, shards: list[Path]
) -> None:
    ref = host(blobs).publish(TWO, shards, ONE, CONFIG)
    weights = host(blobs)
    opened = weights.open(ref)
    assert (opened.digest, opened.adapter) == (ref.digest, CONFIG)
    assert [path.read_bytes() for path in opened.shards] == [path.read_bytes() for path in shards]
    assert weights.open(ref) == opened
    assert weights.chain(ref) == [ref]


def test_a_process_that_finds_it_in_the_cache_verifies_it(shards: list[Path], tmp_path: Path) -> None:
    blobs = STORES["memory"](tmp_path)
    ref = BlobWeights(blobs, tmp_path / "host").publish(TWO, shards, ONE, CONFIG)
    blobs.delete(FILE)
    (cached,) = BlobWeights(blobs, tmp_path / "host").open(ref).shards
    assert cached.is_relative_to(tmp_path / "host")
    cached.write_bytes(cached.read_bytes()[:-1] + b"\0")
    with pytest.raises(WeightsError, match=f"{FILE}: missing"):
        BlobWeights(blobs, tmp_path / "host").open(ref)


@pytest.mark.parametrize("change", [{"base_digest": "cd" * 32}, {"rank": 3}, {"alpha": 5.0}])
def test_the_digest_covers_base_rank_and_alpha(
    blobs: FsspecBlobs, host: Host, shards: list[Path], change: dict[str, object]
) -> None:
    ref = host(blobs).publish(TWO, shards, ONE, CONFIG)
    other = msgspec.structs.replace(CONFIG, **change)
    assert ref.digest == digest_of_version(shards, CONFIG)
    assert len({digest_of_version(shards, CONFIG), digest_of_version(shards, other), digest_of_shards(shards)}) == 3
    said = json.loads(blobs.get(MANIFEST))
    blobs.put(MANIFEST, json.dumps(said | {"adapter": said["adapter"] | change}).encode())
    with pytest.raises(WeightsError, match=f"{MANIFEST}: the tensors' digest is"):
        host(blobs).open(ref)


def test_the_same_tensors_as_whole_weights_are_another_version(
    blobs: FsspecBlobs, host: Host, shards: list[Path]
) -> None:
    ref = host(blobs).publish(TWO, shards, ONE, CONFIG)
    assert host(blobs).publish(TWO, shards, ONE, CONFIG) == ref
    with pytest.raises(WeightsError, match=f"{MANIFEST}: version 2 is published with digest"):
        host(blobs).publish(TWO, shards, ONE)
    said = json.loads(blobs.get(MANIFEST))
    blobs.put(MANIFEST, json.dumps({name: value for name, value in said.items() if name != "adapter"}).encode())
    with pytest.raises(WeightsError, match=f"{MANIFEST}: the tensors' digest is"):
        host(blobs).open(ref)


def test_neither_a_delta_nor_the_base_of_one(blobs: FsspecBlobs, tmp_path: Path, shards: list[Path]) -> None:
    """Tensors that equal their parent's to the last bit would be the smallest delta."""
    weights = BlobWeights(blobs, tmp_path / "host")
    refs = [weights.publish(TWO, shards, ONE, CONFIG), weights.publish(base_ref(3), shards, TWO, CONFIG)]
    refs.append(weights.publish(base_ref(4), shards, base_ref(3)))
    assert [len(blobs.list(f"weights/{number:08d}/adapter")) for number in (2, 3, 4)] == [1, 1, 1]
    assert [weights.open(ref).adapter for ref in refs] == [CONFIG, CONFIG, None]
    weights.discard(TWO)
    assert BlobWeights(blobs, tmp_path / "other").open(refs[1]).adapter == CONFIG


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"m.weight": TENSORS["m.lora_A.weight"]}, "m.weight is not one of an adapter's pairs"),
        ({"m.lora_A.weight": TENSORS["m.lora_A.weight"]}, "m.lora_A.weight is not one of an adapter's pairs"),
        (TENSORS | {"m.lora_B.weight": np.ones((4, 3), "f4")}, r"m.lora_B.weight is of shape \[4, 3\], and the rank 2"),
        (TENSORS | {"m.lora_A.weight": np.ones((2, 8), "i4")}, "m.lora_A.weight is of dtype I32"),
        ({}, "an adapter without tensors"),
    ],
)
def test_what_is_no_adapter_is_not_published(
    blobs: FsspecBlobs, host: Host, tmp_path: Path, tensors: dict[str, np.ndarray], told: str
) -> None:
    with pytest.raises(WeightsError, match=told):
        host(blobs).publish(TWO, written(tmp_path / "none" / "adapter.safetensors", tensors), ONE, CONFIG)
    assert blobs.list("") == []


@pytest.mark.parametrize("lives", [0, 1])
def test_a_publication_that_was_cut_off_is_no_version(
    tmp_path: Path, host: Host, shards: list[Path], lives: int
) -> None:
    cut = MortalBlobs(tmp_path / "blobs")
    cut.lives = lives
    with pytest.raises(Died):
        host(cut).publish(TWO, shards, ONE, CONFIG)
    blobs = FsspecBlobs(tmp_path / "blobs")
    ref = WeightsRef(version=TWO, digest=digest_of_version(shards, CONFIG), path=MANIFEST)
    with pytest.raises(WeightsError, match=f"{MANIFEST}: missing"):
        host(blobs).open(ref)
    other = written(tmp_path / "other" / "adapter.safetensors", {name: one + 1 for name, one in TENSORS.items()})
    again = host(blobs).open(host(blobs).publish(TWO, other, ONE, CONFIG))
    assert load_file(again.shards[0])["m.lora_A.weight"][0, 0] == 1


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_half_an_adapter_and_a_flipped_bit_are_named(
    blobs: FsspecBlobs, host: Host, shards: list[Path], share: float
) -> None:
    ref = host(blobs).publish(TWO, shards, ONE, CONFIG)
    content = blobs.get(FILE)
    blobs.put(FILE, content[: int(len(content) * share)])
    with pytest.raises(WeightsError, match=f"{FILE}: .* bytes instead of"):
        host(blobs).open(ref)
    place = min(int(len(content) * share), len(content) - 1)
    blobs.put(FILE, content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
    with pytest.raises(WeightsError, match=f"{FILE}: corrupt"):
        host(blobs).open(ref)
    blobs.put(FILE, content)
    assert isinstance(host(blobs).open(ref), Opened)
