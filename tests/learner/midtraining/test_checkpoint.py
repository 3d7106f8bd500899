"""Checkpoints are whole or absent, and a learner that dies between any two steps recovers."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from blake3 import blake3
from logged_world import MODEL, World, lineage_of_newest, logged_past, manifests, publications, settle
from past_batches import some_batch
from safetensors.torch import save_file
from torch.distributed.checkpoint.filesystem import FileSystem

import learner.publishing
import learner.versions.checkpoint
import learner.versions.durable
import learner.versions.version_files
from core import codec
from core.errors import CheckpointError
from core.ids import base_ref
from core.model.probes import get_probe
from core.model.weights_digest import digest_of_shards
from core.ports import WeightsRef
from core.settings import LearnerSettings
from core.store.policies import Policies
from learner.stage import Learner
from learner.updates import kept
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update
from learner.versions.checkpoint import FORMAT, Checkpoints, Meta, begin, finish, restore
from learner.versions.journal import Journal
from learner.versions.manifest import batch_of, prove_exactly_once, settings_of

MakeWorld = Callable[[str], World]
DIGEST_BYTES = 32  # before the meta data stands its digest
FILES = ("__0_0.distcp", ".metadata", "memory.pt", "meta.msgpack")


class Died(Exception):
    """The end of the process, as by a power cut."""


def trained(world: World, batches: int) -> None:
    one = world.learner()
    for seed in range(batches):
        world.tell(*logged_past(8, seed=seed))
        settle(one)
    one.close()


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(content)


def checkpoint_path(world: World, version: int) -> Path:
    return world.directory / "learner" / f"checkpoint-{version:08d}"


# ----------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def state() -> LearnerState:
    return make_state(MODEL, LearnerSettings())


@pytest.fixture
def checkpoints(tmp_path: Path, state: LearnerState) -> Checkpoints:
    """Return checkpoints of versions 2 and 3."""
    made = Checkpoints(tmp_path)
    for version in (2, 3):
        memory = begin(state, made.room_for(base_ref(version)))
        made.keep(Meta(version=base_ref(version), lineage=(), applied={}), memory, finish(state))
    return made


@pytest.mark.parametrize("name", FILES)
def test_a_corrupt_file_is_named_and_the_checkpoint_before_is_used(
    checkpoints: Checkpoints, tmp_path: Path, name: str
) -> None:
    damage(tmp_path / "checkpoint-00000003" / name)
    found, faults = checkpoints.newest()
    assert found is not None
    assert found.version == base_ref(2)
    assert [str(fault).startswith(str(tmp_path / "checkpoint-00000003" / name)) for fault in faults] == [True]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_short_is_named(checkpoints: Checkpoints, tmp_path: Path, name: str) -> None:
    path = tmp_path / "checkpoint-00000003" / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=name):
        checkpoints.of(base_ref(3))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(checkpoints: Checkpoints, tmp_path: Path, name: str) -> None:
    (tmp_path / "checkpoint-00000003" / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        checkpoints.of(base_ref(3))


def test_another_format_is_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-00000003" / "meta.msgpack"
    meta = codec.decoder(Meta).decode(path.read_bytes()[DIGEST_BYTES:])
    data = codec.encoder().encode(msgspec.structs.replace(meta, format=FORMAT + 1))
    path.write_bytes(blake3(data).digest() + data)
    with pytest.raises(CheckpointError, match=f"meta.msgpack: format {FORMAT + 1}"):
        checkpoints.of(base_ref(3))


def test_what_was_never_finished_is_swept(checkpoints: Checkpoints, tmp_path: Path) -> None:
    partial = tmp_path / "checkpoint-00000004.partial"
    shutil.copytree(tmp_path / "checkpoint-00000003", partial)
    found, faults = Checkpoints(tmp_path).newest()
    assert not partial.exists()
    assert found is not None
    assert (found.version, faults) == (base_ref(3), [])


def test_what_is_written_is_what_the_tensors_were_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next update does not wait, and does not spoil it."""
    updated, open_file = threading.Event(), FileSystem.create_stream

    def open_late(*given: Any) -> Any:
        assert updated.wait(120)
        return open_file(*given)

    monkeypatch.setattr(FileSystem, "create_stream", open_late)
    one, made = make_state(MODEL, LearnerSettings()), Checkpoints(tmp_path)
    update(one, some_batch(0), LearnerSettings())
    before = kept_of(one)
    memory = begin(one, made.room_for(base_ref(2)))
    update(one, some_batch(1), LearnerSettings())
    updated.set()
    checkpoint = made.keep(Meta(version=base_ref(2), lineage=(), applied={}), memory, finish(one))
    assert kept_of(one) != before
    again = make_state(MODEL, LearnerSettings())
    restore(again, checkpoint, [])
    assert kept_of(again) == before


def kept_of(state: LearnerState) -> list[Any]:
    return tensors_of({**kept._tensors(state), **kept.small_part(state)})


def test_a_learner_says_what_is_corrupt_and_learns_again_what_it_held(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """A corrupt checkpoint costs time alone: the bits are those of a learner that was never stopped."""
    world, undisturbed = make_world("a"), make_world("b")
    for each in (world, undisturbed):
        trained(each, 2)
    damage(checkpoint_path(world, 3) / "__0_0.distcp")
    for each in (world, undisturbed):
        each.tell(*logged_past(8, seed=5))
    caplog.set_level("INFO")
    one = world.learner()
    assert one.newest == base_ref(3)
    assert "checkpoint-00000003/__0_0.distcp: corrupt" in caplog.text
    assert "learned up to version 3 again: 2 of 2 updates" in caplog.text
    for each in (one, undisturbed.learner()):
        settle(each)
        each.close()
    assert prove_exactly_once(lineage_of_newest(world)) == 24
    assert digests_of(world) == digests_of(undisturbed)


def digests_of(world: World) -> list[str]:
    with world.store.look() as view:
        return [policy.digest for policy, _ in view.policies.newest(100)]


def kept_checkpoints(world: World) -> list[int]:
    return [int(path.name.split("-")[1]) for path in sorted((world.directory / "learner").glob("checkpoint-*"))]


def test_old_ones_go_but_not_the_one_that_makes_the_live_version(make_world: MakeWorld) -> None:
    world = make_world("a")
    for seed in range(2):
        settled_once(world, seed)
    world.release(3)
    for seed in range(2, 5):
        settled_once(world, seed)
    assert kept_checkpoints(world) == [3, 5, 6]
    world.release(6)
    settled_once(world, 6)
    assert kept_checkpoints(world) == [6, 7]


def settled_once(world: World, seed: int, settings: dict[str, object] | None = None) -> None:
    """Learn a version, and end, which writes a checkpoint."""
    one = world.learner(settings={"checkpoints.past_gb": 0.0} | (settings or {}))
    world.tell(*logged_past(8, seed=seed))
    settle(one)
    one.close()


def test_what_they_take_of_the_disk_is_bounded_but_for_the_newest(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world("a")
    caplog.set_level("INFO")
    for seed in range(3):
        settled_once(world, seed, {"checkpoints.disk_gb": 1e-6})
    assert kept_checkpoints(world) == [4]
    assert "checkpoint of version 3 deleted: learner.checkpoints.disk_gb is 1e-06" in caplog.text
    with world.store.look() as view:
        policy = view.policies.get(base_ref(4))
    assert policy is not None
    assert 10e6 < policy.metrics["checkpoint_disk_bytes"] < 11e6, "of the one before it"


def test_one_is_written_every_so_often_and_none_at_the_end_that_is_there(make_world: MakeWorld) -> None:
    world = make_world("a")
    one = world.learner(settings={"checkpoints.every_s": 0.0})
    world.tell(*logged_past(8))
    settle(one)
    assert one._checkpointing._writing is not None, "the loop does not wait for it"
    one.close()
    assert kept_checkpoints(world) == [2]
    before = checkpoint_path(world, 2).stat().st_mtime_ns
    world.learner().close()
    assert checkpoint_path(world, 2).stat().st_mtime_ns == before
    trained(world, 3)  # the first batch is known
    assert kept_checkpoints(world) == [2, 4], "no more often than every minute"


def test_a_checkpoint_gives_back_every_tensor(make_world: MakeWorld) -> None:
    world = make_world("a")
    trained(world, 2)
    checkpoint = Checkpoints(world.directory / "learner").of(base_ref(3))
    assert checkpoint is not None
    states = [make_state(MODEL, LearnerSettings()) for _ in range(2)]
    for state in states:
        restore(state, checkpoint, [])
    assert kept_of(states[0]) == kept_of(states[1])
    assert {float(moment["step"]) for moment in states[0].optimizer.state.values()} == {2.0}
    assert digest(states[0], world.directory / "again.safetensors") == digests_of(world)[0]


def tensors_of(state: dict[str, Any]) -> list[Any]:
    found = []
    for value in state.values():
        match value:
            case torch.Tensor():
                found.append(value.tolist())
            case dict():
                found += tensors_of(value)
            case _:
                found.append(value)
    return found


def digest(state: LearnerState, path: Path) -> str:
    save_file(state.policy.tensors(), path)
    return digest_of_shards([path])


# ----------------------------------------------------------------------------------------------- as lived


def test_the_manifests_alone_make_the_same_weights(make_world: MakeWorld) -> None:
    """The batches of the version's lineage are repeated from the anchor on, corrections included."""
    world = make_world("a")
    one = world.learner(settings={"batch.turns": 12, "batch.min_turns": 4})
    past = logged_past(20)
    world.tell(*past)
    settle(one)
    world.tell(*[(turn, msgspec.structs.replace(reward, revision=1, value=0.1)) for turn, reward in past[:8]])
    settle(one)
    one.close()
    lineage = lineage_of_newest(world)
    assert any(record.applied_revision == 0 for made in lineage for record in made.turns)
    settings = settings_of(lineage[0])
    state = make_state(MODEL, settings)
    for made in lineage:
        with world.store.look() as view:
            found = view.turns.get_many([reward.inference_id for reward in made.rewards])
            policy = view.policies.get(made.version)
        result = update(state, batch_of(made, found), settings)
        assert result.records == made.turns
        assert policy is not None
        assert digest(state, world.directory / "replayed.safetensors") == policy.digest


# ----------------------------------------------------------------------------------------------- crashes


STEPS = (
    *("allocate", "sync entry", "name entry"),
    *("write files", "publish weights", "put manifest", "put probe", "put policy", "tell", "tidy"),
    *("begin checkpoint", "write checkpoint", "describe checkpoint", "sync checkpoint", "delete checkpoints"),
)


def arm(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Make a learner of this world die the next time it reaches `step`."""

    def die(*_args: Any, **_options: Any) -> Any:
        monkeypatch.undo()
        raise Died

    where: dict[str, tuple[Any, str]] = {
        "allocate": (Policies, "allocate"),
        "sync entry": (learner.versions.durable, "sync"),
        "name entry": (Path, "replace"),
        "write files": (learner.versions.version_files, "save_file"),
        "publish weights": (world.weights, "publish"),
        "put manifest": (world.blobs, "put"),
        "put probe": (learner.publishing, "put_probe"),
        "put policy": (Policies, "put"),
        "tell": (world.log, "append_blocking"),
        "tidy": (Journal, "prune"),
        "begin checkpoint": (Checkpoints, "room_for"),
        "write checkpoint": (kept, "Saving"),
        "describe checkpoint": (learner.versions.checkpoint, "write_sealed"),
        "sync checkpoint": (learner.versions.checkpoint, "sync"),
        "delete checkpoints": (Checkpoints, "delete"),
    }
    monkeypatch.setattr(*where[step], die)


def settle_and_close(one: Learner) -> None:
    """Do everything that a learner does, what it does in the background included."""
    settle(one)
    one.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_before_any_step_is_made_good(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world = make_world("a")
    one = world.learner(settings={"checkpoints.every_s": 0.0, "checkpoints.keep": 1, "checkpoints.past_gb": 0.0})
    world.tell(*logged_past(8))
    settle(one)
    world.tell(*logged_past(8, seed=1))
    arm(world, monkeypatch, step)
    with pytest.raises(Died):
        settle_and_close(one)
    one._held.close()

    again = world.learner()
    settle(again)
    world.tell(*logged_past(8, seed=2))
    settle(again)
    again.close()
    lineage = lineage_of_newest(world)
    assert prove_exactly_once(lineage) == 24  # nothing lost, nothing twice
    assert len(lineage) == len(manifests(world)) == 3
    said = publications(world)
    assert {one.version for one in lineage} <= set(said)
    for made in lineage:
        with world.store.look() as view:
            policy = view.policies.get(made.version)
        assert policy is not None
        world.weights.open(WeightsRef(version=policy.version, digest=policy.digest, path=policy.weights))
        get_probe(world.blobs, policy.version, policy.digest)


def test_a_crash_changes_no_bit(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = make_world("whole"), make_world("broken")
    digests = []
    for world in (whole, broken):
        one = world.learner()
        for seed in range(3):
            world.tell(*logged_past(8, seed=seed))
            if world is broken and seed == 1:
                arm(world, monkeypatch, "publish weights")
                with pytest.raises(Died):
                    settle(one)
                one.close()
                one = world.learner()
            settle(one)
        one.close()
        with world.store.look() as view:
            known = [policy for policy, _ in view.policies.newest(10)]
        digests.append([(policy.digest, get_probe(world.blobs, policy.version)) for policy in known])
    assert digests[0] == digests[1]
