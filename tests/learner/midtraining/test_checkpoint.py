"""Checkpoints are whole or absent, and a learner that dies between any two steps recovers."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from blake3 import blake3
from logged_world import MODEL, START, World, lineage_of_newest, logged_past, manifests, publications, settle

import learner.stage
import learner.versions.checkpoint
import learner.versions.publish
from core import codec
from core.errors import CheckpointError
from core.events import PolicyVersion
from core.ids import base_ref
from core.model.probes import get_probe
from core.model.weights_digest import digest_of_shards
from core.ports import WeightsRef
from core.settings import LearnerSettings
from core.store.policies import Policies
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update
from learner.versions.checkpoint import FORMAT, Checkpoints, Meta, contents, restore
from learner.versions.manifest import batch_of, prove_exactly_once, settings_of

MakeWorld = Callable[[str], World]
DIGEST_BYTES = 32  # before the meta data stands its digest
FILES = ("model.safetensors", "state.pt", "memory.pt", "manifest.msgpack.zst", "meta.msgpack")


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
        made.write(contents(state), meta_of(version), b"manifest")
    return made


def meta_of(version: int) -> Meta:
    policy = PolicyVersion(
        version=base_ref(version), policy="p", digest="", parent=None, manifest=None, weights="", created_at=START
    )
    return Meta(policy=policy, lineage=(), live=None, refused=(), offsets={}, pending=(), applied={})


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "memory.pt", "manifest.msgpack.zst"])
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


def test_a_learner_says_what_is_corrupt_and_goes_on(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world("a")
    trained(world, 2)
    damage(checkpoint_path(world, 3) / "state.pt")
    one = world.learner()
    assert one.newest == base_ref(2)
    assert "state.pt" in caplog.text
    world.tell(*logged_past(8, seed=5))
    settle(one)
    one.close()
    assert prove_exactly_once(lineage_of_newest(world)) == 24


def test_old_ones_go_but_not_the_live_one(make_world: MakeWorld) -> None:
    world = make_world("a")
    one = world.learner(settings={"checkpoints.keep": 2})
    for seed in range(2):
        world.tell(*logged_past(8, seed=seed))
        settle(one)
    world.release(2)
    for seed in range(2, 5):
        world.tell(*logged_past(8, seed=seed))
        settle(one)
    one.close()
    kept = sorted(path.name for path in (world.directory / "learner").iterdir())
    assert kept == ["checkpoint-00000002", "checkpoint-00000005", "checkpoint-00000006"]


def test_a_checkpoint_gives_back_every_tensor(make_world: MakeWorld) -> None:
    world = make_world("a")
    trained(world, 2)
    checkpoint = Checkpoints(world.directory / "learner").of(base_ref(3))
    assert checkpoint is not None
    states = [make_state(MODEL, LearnerSettings()) for _ in range(2)]
    for state in states:
        restore(state, checkpoint)
    assert tensors_of(states[0].state_dict()) == tensors_of(states[1].state_dict())
    moments = states[0].state_dict()["optimizer"]["state"]
    assert {float(moment["step"]) for moment in moments.values()} == {2.0}
    assert digest(states[0], world.directory / "again.safetensors") == digest_of_shards([checkpoint.weights])


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
    learner.versions.checkpoint.save_file(state.policy.tensors(), path)
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
    *("allocate", "save weights", "save state", "sync", "rename"),
    *("publish weights", "put manifest", "put probe", "put policy", "tell", "commit"),
)


def arm(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Make a learner of this world die the next time it reaches `step`."""

    def die(*_args: Any, **_options: Any) -> Any:
        monkeypatch.undo()
        raise Died

    match step:
        case "allocate":
            monkeypatch.setattr(Policies, "allocate", die)
        case "save weights":
            monkeypatch.setattr(learner.versions.checkpoint, "save_file", die)
        case "save state":
            monkeypatch.setattr(torch, "save", die)
        case "sync":
            monkeypatch.setattr(learner.versions.checkpoint, "_sync", die)
        case "rename":
            monkeypatch.setattr(Path, "rename", die)
        case "publish weights":
            monkeypatch.setattr(world.weights, "publish", die)
        case "put manifest":
            monkeypatch.setattr(world.blobs, "put", die)
        case "put probe":
            monkeypatch.setattr(learner.versions.publish, "put_probe", die)
        case "put policy":
            monkeypatch.setattr(Policies, "put", die)
        case "tell":
            monkeypatch.setattr(world.log, "append_blocking", die)
        case "commit":
            monkeypatch.setattr(Checkpoints, "prune", die)


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_before_any_step_is_made_good(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world = make_world("a")
    one = world.learner()
    world.tell(*logged_past(8))
    settle(one)
    world.tell(*logged_past(8, seed=1))
    arm(world, monkeypatch, step)
    with pytest.raises(Died):
        settle(one)
    one.close()

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
