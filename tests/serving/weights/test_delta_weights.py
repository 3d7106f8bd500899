"""Versions published as deltas: the files written and read, the files that may be deleted, and damage."""

import json
import multiprocessing
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delta_world import Checkpoint, random_weights, small_step, write_sharded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mortal_blobs import Died, MortalBlobs

from core.blobs import FsspecBlobs
from core.errors import ConfigError, WeightsError
from core.ids import base_ref
from core.model.weights_digest import digest_of_shards
from core.ports import WeightsRef
from serving.weights.cache import VersionCache
from serving.weights.published import BlobWeights

SHAPES = {"embed": ("BF16", (200, 32)), "up": ("BF16", (64, 64)), "norm": ("F32", (16,)), "scale": ("F32", (3,))}
# Processes fork from one that has imported this module, not from this process, which has threads.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([__name__])
STORES: dict[str, Callable[[Path], FsspecBlobs]] = {
    "directory": lambda path: FsspecBlobs(path / "blobs"),
    "memory": lambda path: FsspecBlobs(f"memory://{uuid.uuid4().hex}"),
}


class World:
    """A line of checkpoints, each a small step from the one before, and the blobs they are published to."""

    def __init__(self, directory: Path, blobs: FsspecBlobs) -> None:
        self.directory, self.blobs = directory, blobs
        self.rng = np.random.default_rng(0)
        self.tensors = {name: random_weights(self.rng, dtype, shape) for name, (dtype, shape) in SHAPES.items()}
        self.shards: dict[int, list[Path]] = {}
        self.refs: dict[int, WeightsRef] = {}
        self.publisher = self.host("publisher")
        self.hosts = 0

    def host(self, name: str | None = None, **settings: Any) -> BlobWeights:
        """Return a process's weights; processes of the same name share one host's disk."""
        if name is None:
            self.hosts += 1
            name = f"host-{self.hosts}"
        return BlobWeights(self.blobs, self.directory / name, **settings)

    def write(self, number: int, tensors: Checkpoint) -> list[Path]:
        self.shards[number] = write_sharded(self.directory / "shards" / str(number), tensors, 2)
        return self.shards[number]

    def publish(
        self, number: int, parent: int | None = None, share: float = 0.02, by: BlobWeights | None = None
    ) -> WeightsRef:
        if number > 1:
            self.tensors = small_step(self.rng, self.tensors, share)
        parent = parent if parent is not None else number - 1 or None
        shards = self.write(number, self.tensors)
        self.refs[number] = (by or self.publisher).publish(
            base_ref(number), shards, None if parent is None else base_ref(parent)
        )
        return self.refs[number]

    def files(self, number: int) -> list[str]:
        return [path.rpartition("/")[2] for path in self.blobs.list(f"weights/{number:08d}/")]

    def size(self, number: int) -> int:
        return sum(len(self.blobs.get(path)) for path in self.blobs.list(f"weights/{number:08d}/"))

    def check(self, number: int, by: BlobWeights) -> None:
        """Assert that the version opens as it was published, file by file."""
        opened = by.open(self.refs[number]).shards
        assert [path.name for path in opened] == [path.name for path in self.shards[number]]
        assert [path.read_bytes() for path in opened] == [path.read_bytes() for path in self.shards[number]]


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, STORES[request.param](tmp_path))


@pytest.fixture
def chain(world: World) -> World:
    """Return a world with one anchor and four deltas."""
    for number in range(1, 6):
        world.publish(number)
    return world


FULL = ["manifest.json", "model-0.safetensors", "model-1.safetensors"]


def delta_of(number: int) -> list[str]:
    return [f"delta-{number - 1:08d}.bin", "manifest.json"]


# ------------------------------------------------------------------------------------------------ publish and open


def test_a_small_step_is_published_as_a_delta(chain: World) -> None:
    assert chain.files(1) == FULL
    for number in range(2, 6):
        assert chain.files(number) == delta_of(number)
        assert chain.size(number) < 0.2 * chain.size(1)


def test_what_it_is_made_upon_and_of_stands_in_the_manifest(chain: World) -> None:
    manifest = json.loads(chain.blobs.get(chain.refs[3].path))
    assert (manifest["version"], manifest["parent"], manifest["digest"]) == (3, 2, chain.refs[3].digest)
    delta = manifest["delta"]
    assert (delta["base"], delta["base_digest"], delta["depth"]) == (2, chain.refs[2].digest, 2)
    assert delta["file"]["bytes"] == len(chain.blobs.get(f"weights/00000003/{delta['file']['name']}"))
    assert set(delta["tensors"]) <= set(SHAPES)
    assert {"embed", "up"} <= set(delta["tensors"])
    assert all({"bytes", "digest"} == set(entry) for entry in delta["tensors"].values())
    assert chain.refs[3] == WeightsRef(
        version=base_ref(3),
        digest=digest_of_shards(chain.shards[3]),
        path="weights/00000003/manifest.json",
        parent=base_ref(2),
        size=delta["file"]["bytes"],
    )
    upon = {base_ref(number): base_ref(number - 1) for number in range(2, 6)}
    assert chain.host().bases() == {base_ref(1): None} | upon


@pytest.mark.parametrize("order", [[1, 2, 3, 4, 5], [5], [5, 4, 3, 2, 1], [3, 5]])
def test_any_version_opens_on_a_host_that_holds_any(chain: World, order: list[int]) -> None:
    one = chain.host()
    for number in order:
        chain.check(number, one)


def test_a_host_that_holds_the_parent_reads_one_delta(chain: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = chain.host("one")
    chain.check(4, one)
    reads: list[str] = []
    local, get = chain.blobs.local, chain.blobs.get
    monkeypatch.setattr(chain.blobs, "local", lambda path, target=None: (reads.append(path), local(path, target))[1])
    monkeypatch.setattr(chain.blobs, "get", lambda path: (reads.append(path), get(path))[1])
    for again in (one, chain.host("one")):
        reads.clear()
        chain.check(5, again)
        expected = ["weights/00000005/manifest.json", "weights/00000005/delta-00000004.bin"]
        assert reads == expected[: 2 if again is one else 1], "the second process finds it on the disk"


def test_the_publisher_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher has the parent already, since it published it itself."""
    world = World(tmp_path, STORES["memory"](tmp_path))
    monkeypatch.setattr(world.blobs, "local", None)
    for number in range(1, 4):
        world.publish(number)
    assert world.files(3) == delta_of(3)


def test_a_publisher_elsewhere_fetches_what_it_needs(chain: World) -> None:
    chain.publish(6, by=chain.host())
    assert chain.files(6) == delta_of(6)
    chain.check(6, chain.host())


def test_publishing_again_changes_nothing(chain: World) -> None:
    before = {path: chain.blobs.get(path) for path in chain.blobs.list("")}
    for by in (chain.publisher, chain.host(), BlobWeights(chain.blobs)):
        assert by.publish(base_ref(4), chain.shards[4], base_ref(3)) == chain.refs[4]
    with pytest.raises(WeightsError, match=r"weights/00000004/manifest\.json: version 4 is published with digest"):
        chain.publisher.publish(base_ref(4), chain.shards[5], base_ref(3))
    assert {path: chain.blobs.get(path) for path in chain.blobs.list("")} == before


def test_a_version_like_its_parent_is_the_smallest_delta(chain: World) -> None:
    chain.publish(6, share=0.0)
    assert chain.files(6) == delta_of(6)
    assert chain.refs[6].digest == chain.refs[5].digest
    chain.check(6, chain.host())


def test_without_a_cache_a_delta_cannot_be_opened(chain: World) -> None:
    with pytest.raises(ConfigError, match=r"weights/00000003/manifest\.json: a delta, and no cache directory"):
        BlobWeights(chain.blobs).open(chain.refs[3])
    if chain.blobs.is_local:
        chain.check(1, BlobWeights(chain.blobs))


# ------------------------------------------------------------------------------------------------ when it is a full one


def test_a_full_anchor_comes_every_so_often(world: World) -> None:
    world.publisher = world.host("publisher", anchor_every=3)
    for number in range(1, 9):
        world.publish(number)
    assert [world.files(number) == FULL for number in range(1, 9)] == [True, False, False] * 2 + [True, False]
    one = world.host()
    for number in range(1, 9):
        world.check(number, one)
    assert [ref.version.version for ref in one.chain(world.refs[6])] == [4, 5, 6]


def test_one_of_one_is_full(world: World) -> None:
    world.publisher = world.host(anchor_every=1)
    world.publish(1)
    world.publish(2)
    assert world.files(2) == FULL


@pytest.mark.parametrize("change", ["shape", "name", "dtype", "more", "fewer", "metadata", "shards"])
def test_another_layout_is_published_full(world: World, change: str) -> None:
    world.publish(1)
    dtype, shape, bits = world.tensors["up"]
    match change:
        case "shape":
            world.tensors["up"] = (dtype, (32, 128), bits)
        case "name":
            world.tensors = {name.replace("up", "ab"): tensor for name, tensor in world.tensors.items()}
        case "dtype":
            world.tensors["up"] = ("F16", shape, bits)
        case "more":
            world.tensors["last"] = (dtype, (1,), bits[:1])
        case "fewer":
            del world.tensors["scale"]
    shards = write_sharded(world.directory / "other", world.tensors, 3 if change == "shards" else 2)
    if change == "metadata":
        raw = shards[0].read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.dumps({"__metadata__": {"format": "pt"}, **json.loads(raw[8 : 8 + size])}).encode()
        shards[0].write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + size :])
    ref = world.publisher.publish(base_ref(2), shards, base_ref(1))
    assert not [name for name in world.files(2) if name.startswith("delta")]
    assert [path.read_bytes() for path in world.host().open(ref).shards] == [path.read_bytes() for path in shards]


@pytest.mark.parametrize("parent", [None, 7, 2])
def test_without_a_published_parent_it_is_full(world: World, parent: int | None) -> None:
    world.publish(1)
    shards = world.write(2, small_step(world.rng, world.tensors))
    ref = world.publisher.publish(base_ref(2), shards, None if parent is None else base_ref(parent))
    assert world.files(2) == FULL
    assert ref.parent == (None if parent is None else base_ref(parent))


def test_what_a_delta_does_not_make_smaller_is_full(world: World) -> None:
    world.publish(1)
    world.tensors = {name: random_weights(world.rng, dtype, shape) for name, (dtype, shape) in SHAPES.items()}
    world.publish(2)
    assert world.files(2) == FULL


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    rows=st.sampled_from([0, 1, 3, 40, 900]),
    noise=st.sampled_from([0, 1, 60, 2**14]),
    skewed=st.booleans(),
)
def test_a_version_is_never_larger_than_full(tmp_path: Path, share: float, rows: int, noise: int, skewed: bool) -> None:
    """All its blobs count, even if the sample predicted less."""
    world = World(tmp_path / uuid.uuid4().hex, FsspecBlobs(f"memory://{uuid.uuid4().hex}"))
    if rows:
        world.tensors = {f"t{number}": random_weights(world.rng, "BF16", (rows,)) for number in range(4)}
    world.publish(1)
    for name, (dtype, shape, bits) in world.tensors.items():
        steps = np.rint(world.rng.normal(size=len(bits)) * noise) * (world.rng.random(len(bits)) < share)
        if skewed:  # the middle, which the sample sees, does not change
            steps[len(bits) // 4 : -(len(bits) // 4) or None] = 0
        world.tensors[name] = (dtype, shape, bits + steps.astype(np.int64).astype(bits.dtype))
    world.publish(2, share=0.0)
    assert world.size(2) <= world.size(1)
    world.check(2, world.host())


def test_a_parent_that_is_damaged_makes_the_next_full(chain: World, caplog: pytest.LogCaptureFixture) -> None:
    """The full version heals the chain."""
    path = "weights/00000004/delta-00000003.bin"
    chain.blobs.put(path, chain.blobs.get(path)[:-1])
    chain.publish(6, parent=5, by=chain.host())
    assert chain.files(6) == FULL
    assert f"version 6 is published full: its parent cannot be read ({path}" in caplog.text
    chain.check(6, chain.host())


# ------------------------------------------------------------------------------------------------ chains


def test_a_chain_goes_from_the_anchor_to_the_version(chain: World) -> None:
    for reader in (chain.publisher, BlobWeights(chain.blobs)):
        assert reader.chain(chain.refs[4]) == [chain.refs[number] for number in (1, 2, 3, 4)]
        assert reader.chain(chain.refs[1]) == [chain.refs[1]]


def test_branches_share_what_they_grew_from(chain: World) -> None:
    """A rollback makes version 6 continue from version 3."""
    chain.tensors = small_step(chain.rng, dict(chain.tensors))
    chain.publish(6, parent=3)
    assert [ref.version.version for ref in chain.publisher.chain(chain.refs[6])] == [1, 2, 3, 6]
    one = chain.host()
    chain.check(5, one)
    chain.check(6, one)


@pytest.mark.parametrize("link", [1, 2, 3])
def test_a_missing_link_is_named(chain: World, link: int) -> None:
    for path in chain.blobs.list(f"weights/{link:08d}/"):
        chain.blobs.delete(path)
    for use in (chain.host().open, chain.host().chain):
        with pytest.raises(WeightsError, match=rf"weights/0000000{link}/manifest\.json: missing"):
            use(chain.refs[4])


def test_a_link_to_other_content_is_named(chain: World, tmp_path: Path) -> None:
    """Version 2 was made again with other content, so deltas from the first one do not fit."""
    for path in chain.blobs.list("weights/00000002/"):
        chain.blobs.delete(path)
    chain.host().publish(base_ref(2), chain.shards[5], base_ref(1))
    for use in (chain.host().open, chain.host().chain):
        with pytest.raises(WeightsError, match=r"weights/00000002/manifest\.json: digest .*, and the delta upon it"):
            use(chain.refs[3])
    chain.check(3, chain.publisher)


# ------------------------------------------------------------------------------------------------ former formats


@pytest.fixture
def former(chain: World) -> World:
    """Return a chain whose delta from version 3 to 4 is of a former build, and a host `one` that opened it then."""
    chain.check(4, chain.host("one"))
    path = chain.refs[4].path
    manifest = json.loads(chain.blobs.get(path))
    del manifest["delta"]["format"]
    for entry in manifest["delta"]["tensors"].values():
        entry["encoding"] = "steps+values"
    manifest["delta"]["file"]["name"] = "delta-00000003.safetensors"
    chain.blobs.put("weights/00000004/delta-00000003.safetensors", b"\x81 of another codec")
    chain.blobs.delete("weights/00000004/delta-00000003.bin")
    chain.blobs.put(path, json.dumps(manifest).encode())
    return chain


def test_a_delta_of_a_former_build_is_refused_with_what_to_do(former: World) -> None:
    for number in (4, 5):
        with pytest.raises(
            WeightsError, match=r"weights/00000004/manifest\.json: a delta in format 1, .* roll back to"
        ):
            former.host().open(former.refs[number])
    former.check(3, former.host())


def test_what_a_former_build_opened_stays_readable(former: World) -> None:
    """So a service starts on the version that it served before it was updated."""
    former.check(4, former.host("one"))
    former.check(5, former.host("one"))


def test_upon_a_delta_of_a_former_build_a_version_is_full(former: World) -> None:
    former.publish(6, parent=4, by=former.host("one"))
    assert former.files(6) == FULL
    former.check(6, former.host())


def test_a_delta_of_a_former_build_is_deleted_with_what_needs_it(former: World) -> None:
    former.publisher.discard(base_ref(4))
    assert former.files(4), "version 5 needs it"
    for number in (5, 1, 2, 3):
        former.publisher.discard(base_ref(number))
    assert former.blobs.list("") == []


# ------------------------------------------------------------------------------------------------ letting go


def test_what_a_kept_version_needs_stays(chain: World) -> None:
    for number in (1, 3, 2):
        chain.publisher.discard(base_ref(number))
        chain.publisher.discard(base_ref(number))
        with pytest.raises(WeightsError, match=rf"weights/0000000{number}/manifest\.json: missing"):
            chain.host().open(chain.refs[number])
        for kept in {1, 2, 3, 4, 5} - {1, 3, 2, number}:
            chain.check(kept, chain.host())
    assert [ref.path.rpartition("/")[2] for ref in chain.host().chain(chain.refs[4])] == ["link.json"] * 3 + [
        "manifest.json"
    ]


def test_what_nothing_needs_any_more_goes_with_the_last_that_did(chain: World) -> None:
    for number in (2, 1, 4):
        chain.publisher.discard(base_ref(number))
        assert all(chain.files(one) for one in range(1, 6))
    chain.publisher.discard(base_ref(5))
    assert [number for number in range(1, 6) if chain.files(number)] == [1, 2, 3]
    chain.check(3, chain.host())
    chain.publisher.discard(base_ref(3))
    assert chain.blobs.list("") == []


def test_branches_keep_what_they_share(chain: World) -> None:
    chain.publish(6, parent=3)
    for number in (1, 2, 3, 4, 5):
        chain.publisher.discard(base_ref(number))
    assert [number for number in range(1, 7) if chain.files(number)] == [1, 2, 3, 6]
    chain.check(6, chain.host())


def test_upon_a_discarded_parent_it_is_full(chain: World) -> None:
    chain.publisher.discard(base_ref(4))
    chain.publish(6, parent=4)
    assert chain.files(6) == FULL


def test_a_discarded_version_may_be_published_again(chain: World) -> None:
    chain.publisher.discard(base_ref(3))
    with pytest.raises(WeightsError, match=r"weights/00000003/link\.json: version 3 is published with digest"):
        chain.host().publish(base_ref(3), chain.shards[5], base_ref(2))
    assert chain.host().publish(base_ref(3), chain.shards[3], base_ref(2)) == chain.refs[3]
    for number in range(1, 6):
        chain.check(number, chain.host())
    chain.publisher.discard(base_ref(3))
    chain.check(4, chain.host())


@pytest.mark.parametrize("moment", ["before the delta is there", "before the manifest is there"])
def test_a_parent_discarded_under_way_is_not_relied_on(
    chain: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whichever comes first, every published version has its base."""
    put_file, exists = chain.blobs.put_file, chain.blobs.exists
    elsewhere = chain.host()
    done: list[str] = []

    def discard(path: str) -> None:
        if path.startswith("weights/00000006/delta") and not done:
            done.append(path)
            elsewhere.discard(base_ref(5))

    def before(path: str, *given: Any) -> None:
        discard(path)
        put_file(path, *given)

    def after(path: str, *given: Any) -> None:
        put_file(path, *given)
        discard(path)

    monkeypatch.setattr(chain.blobs, "put_file", before if moment == "before the delta is there" else after)
    chain.publish(6)
    assert done
    assert chain.blobs.exists is not None
    assert exists("weights/00000006/manifest.json")
    assert chain.files(6) == FULL
    chain.check(6, chain.host())
    chain.publisher.discard(base_ref(4))
    assert not chain.files(5), "and it is not needed for nothing"


@pytest.mark.parametrize("lives", range(9))
def test_a_discard_that_was_cut_off_harms_nobody(tmp_path: Path, lives: int) -> None:
    """The kept versions open at any point, and discarding again completes it."""
    blobs = MortalBlobs(tmp_path / "blobs")
    world = World(tmp_path, blobs)
    for number in range(1, 4):
        world.publish(number)
    world.publish(4, parent=2)
    blobs.lives = lives
    dead = []
    for number in (2, 3, 1):
        dead.append(number)
        try:
            world.publisher.discard(base_ref(number))
        except Died:
            break
    blobs.lives = 1_000_000
    for number in {1, 2, 3, 4} - set(dead):
        world.check(number, world.host())
    for number in dead:
        world.host().discard(base_ref(number))
    for number in {1, 2, 3, 4} - set(dead):
        world.check(number, world.host())
    world.host().discard(base_ref(4))
    for number in (1, 2, 3):
        world.host().discard(base_ref(number))
    assert blobs.list("") == []


@pytest.mark.parametrize("lives", range(3))
def test_a_publication_that_was_cut_off_is_completed(tmp_path: Path, lives: int) -> None:
    """The content may be the same or another, as a delta or full: nothing of the first attempt stays."""
    for again in (2, 3):
        blobs = MortalBlobs(tmp_path / str(again) / "blobs")
        world = World(tmp_path / str(again), blobs)
        world.publish(1)
        first, other = (world.write(number, small_step(world.rng, world.tensors)) for number in (2, 3))
        blobs.lives = lives
        if lives < 2:
            with pytest.raises(Died):
                world.publisher.publish(base_ref(2), first, base_ref(1))
        blobs.lives = 1_000_000
        if lives < 2:
            assert "manifest.json" not in world.files(2)
        for shards, parent in ((first if again == 2 else other, 1), (other, None)):
            world.refs[3] = world.host().publish(base_ref(3), shards, None if parent is None else base_ref(parent))
            assert world.files(3) == (FULL if parent is None else ["delta-00000001.bin", "manifest.json"])
            shutil.rmtree(tmp_path / str(again) / "blobs" / "weights" / "00000003")
        world.refs[2] = world.host().publish(base_ref(2), first, base_ref(1))
        assert world.files(2) == delta_of(2)
        world.check(2, world.host())


# ------------------------------------------------------------------------------------------------ damage


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :]


def test_any_flipped_bit_of_a_delta_is_found_before_it_is_used(chain: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "weights/00000002/delta-00000001.bin"
    content = chain.blobs.get(path)
    monkeypatch.setattr("serving.weights.published.apply", None)
    for place in range(0, len(content), 13):
        chain.blobs.put(path, flipped(content, place))
        with pytest.raises(WeightsError, match=f"{path}: corrupt"):
            chain.host("one").open(chain.refs[3])
    chain.blobs.put(path, content)
    monkeypatch.undo()
    chain.check(3, chain.host("one"))


@pytest.mark.parametrize("length", [0, 1, 0.5, -1])
def test_a_truncated_delta_is_found(chain: World, length: float) -> None:
    path = "weights/00000003/delta-00000002.bin"
    content = chain.blobs.get(path)
    chain.blobs.put(path, content[: int(length * len(content)) if length == 0.5 else int(length)])
    with pytest.raises(WeightsError, match=rf"{path}: \d+ bytes instead of {len(content)}"):
        chain.host().open(chain.refs[4])


@pytest.mark.parametrize("number", [2, 3])
def test_a_flipped_bit_of_a_deltas_manifest_is_found_or_changes_nothing(chain: World, number: int) -> None:
    """The manifest is the version's own, or that of a link on the way to it."""
    path = chain.refs[number].path
    content = chain.blobs.get(path)
    one = chain.host()
    one.open(chain.refs[1])
    found = 0
    for place in range(0, len(content), 3):
        chain.blobs.put(path, flipped(content, place))
        said = ""
        try:
            opened = chain.host(f"of-{place}").open(chain.refs[3]).shards
        except WeightsError as error:
            said = str(error)
            found += 1
        assert "weights/0000000" in said or digest_of_shards(opened) == chain.refs[3].digest
    assert found > 0.5 * len(content) / 3


def test_a_delta_written_upon_another_parent_never_comes_out(chain: World) -> None:
    """Checksum, manifest and chain are right, but the weights would be wrong."""
    source, manifest = chain.blobs.get(chain.refs[3].path), json.loads(chain.blobs.get(chain.refs[4].path))
    stolen = json.loads(source)["delta"]
    content = chain.blobs.get("weights/00000003/delta-00000002.bin")
    manifest["delta"] |= {"file": {**stolen["file"], "name": "delta-00000003.bin"}}
    chain.blobs.put("weights/00000004/delta-00000003.bin", content)
    for tensors in (manifest["delta"]["tensors"], {}):
        manifest["delta"]["tensors"] = tensors
        chain.blobs.put(chain.refs[4].path, json.dumps(manifest).encode())
        with pytest.raises(
            WeightsError, match=r"is not what was published|is cut off|too many|weights/00000004/manifest\.json: "
        ):
            chain.host("one").open(chain.refs[4])
    chain.check(3, chain.host("one"))


# ------------------------------------------------------------------------------------------------ the cache


def cached(chain: World, name: str) -> list[Path]:
    return sorted(path for path in (chain.directory / name).iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove a shard", "remove all", "add"])
@pytest.mark.parametrize("process", ["same", "another"])
def test_a_damaged_cache_is_found_and_rebuilt(chain: World, damage: str, process: str) -> None:
    """The damaged entry may also be the base of the next version."""
    one = chain.host("one")
    chain.check(4, one)
    (home,) = [home for home in cached(chain, "one") if home.name == chain.refs[4].digest]
    shard = home / "model-0.safetensors"
    content = shard.read_bytes()
    match damage:
        case "flip":
            shard.write_bytes(flipped(content, len(content) - 9))
        case "truncate":
            shard.write_bytes(content[:-1])
        case "remove a shard":
            shard.unlink()
        case "remove all":
            shutil.rmtree(home)
        case "add":
            (home / "model-2.safetensors").write_bytes(content)
    one = one if process == "same" else chain.host("one")
    chain.check(5, one)
    chain.check(4, one)
    assert all(len(list(home.iterdir())) == 2 for home in cached(chain, "one"))


def test_the_cache_keeps_the_versions_last_used(chain: World) -> None:
    """A version is used when it is opened or built upon."""
    one = chain.host("one", cached_versions=3)
    for number in (2, 3, 4, 2, 5):
        chain.check(number, one)
    assert {home.name for home in cached(chain, "one")} == {chain.refs[number].digest for number in (2, 4, 5)}


def test_a_build_that_fails_leaves_nothing(chain: World) -> None:
    chain.blobs.delete("weights/00000005/delta-00000004.bin")
    one = chain.host("one")
    chain.check(3, one)
    with pytest.raises(WeightsError, match=r"delta-00000004\.bin: missing"):
        one.open(chain.refs[5])
    assert not list((chain.directory / "one").glob(".scratch*"))


def test_what_a_dead_process_left_is_cleared_and_a_living_ones_is_not(
    chain: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.weights import cache

    monkeypatch.setattr(cache, "_SETTLED_S", -1.0)
    left = chain.directory / "one" / ".scratch-left"
    (left / "version").mkdir(parents=True)
    (left / ".lock").touch()
    with cache.VersionCache(chain.directory / "one", 4).scratch() as living:
        chain.check(3, chain.host("one"))
        assert living.is_dir()
    assert not left.exists()
    assert not living.exists()


def test_one_process_makes_a_version_and_the_others_wait(tmp_path: Path) -> None:
    """Eight at once read every file of the chain once."""
    world = World(tmp_path, STORES["memory"](tmp_path))
    for number in range(1, 4):
        world.publish(number)
    reads, local = list[str](), world.blobs.local

    def counted(path: str, target: Path | None = None) -> Path:
        reads.append(path)
        time.sleep(0.02)
        return local(path, target)

    world.blobs.local = counted  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as pool:
        for opened in pool.map(lambda _: world.host("shared").open(world.refs[3]), range(8)):
            assert digest_of_shards(opened.shards) == world.refs[3].digest
    assert sorted(reads) == sorted(set(reads))
    assert len(reads) == 4, "two shards and two deltas"
    assert not list((tmp_path / "shared").glob(".turn*"))


def test_a_turn_ends_with_its_process(tmp_path: Path, processes: list[Any]) -> None:
    has_it = FORKING.Event()
    owner = FORKING.Process(target=_hold_a_turn, args=(tmp_path, has_it))
    owner.start()
    processes.append(owner)
    assert has_it.wait(200)
    waited = threading.Thread(target=_take_a_turn, args=(tmp_path,))
    waited.start()
    waited.join(0.2)
    assert waited.is_alive(), "it is the other's turn"
    owner.kill()
    waited.join(120)
    assert not waited.is_alive()


def _hold_a_turn(directory: Path, has_it: Any) -> None:
    with VersionCache(directory, 4).turn("0" * 64):
        has_it.set()
        time.sleep(600)


def _take_a_turn(directory: Path) -> None:
    with VersionCache(directory, 4).turn("0" * 64):
        pass


def test_what_is_published_lies_on_the_disk_once(chain: World) -> None:
    """The publisher's cache and its files are one, also after the files were deleted."""
    (home,) = [home for home in cached(chain, "publisher") if home.name == chain.refs[5].digest]
    assert all(path.samefile(home / path.name) for path in chain.shards[5])
    for path in chain.shards[5]:
        path.unlink()
    assert digest_of_shards(chain.publisher.open(chain.refs[5]).shards) == chain.refs[5].digest


def test_a_kept_file_that_is_written_to_afterwards_is_not_served(chain: World) -> None:
    shard = chain.shards[5][0]
    content = shard.read_bytes()
    shard.write_bytes(flipped(content, len(content) - 3))
    assert digest_of_shards(chain.publisher.open(chain.refs[5]).shards) == chain.refs[5].digest


def _open_all(directory: Path, refs: list[WeightsRef], barrier: Any) -> None:
    one = BlobWeights(FsspecBlobs(directory / "blobs"), directory / "shared", cached_versions=2)
    barrier.wait()
    for ref in refs * 2:
        for _ in range(20):
            shards = one.open(ref).shards
            try:
                digest = digest_of_shards(shards)
            except WeightsError:  # let go between opening and reading: that is the caller's to see to
                continue
            assert digest == ref.digest
            break


@pytest.fixture
def processes() -> Iterator[list[Any]]:
    running: list[Any] = []
    yield running
    for process in running:
        process.kill()
        process.join()
        process.close()


def test_processes_share_one_cache(tmp_path: Path, processes: list[Any]) -> None:
    """Four processes open five versions over and over in a cache for two."""
    world = World(tmp_path, FsspecBlobs(tmp_path / "blobs"))
    refs = [world.publish(number) for number in range(1, 6)]
    barrier = FORKING.Barrier(4)
    for turn in range(4):
        process = FORKING.Process(target=_open_all, args=(tmp_path, refs[turn:] + refs[:turn], barrier))
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(cached(world, "shared")) <= 2
    assert not list((tmp_path / "shared").glob(".scratch*"))
