"""A version is probed by what its publisher recorded, and answers a part of it here, so that a record cannot lie."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import torch
from local_world import World

from core.blobs import FsspecBlobs
from core.errors import WeightsError
from core.ids import ANCHOR, base_ref
from core.model.beside import probe_path
from core.model.probes import ProbeRecord, figures, put_probe
from core.settings import LocalEngineSettings, ServingSettings
from learner.model.policy_model import PolicyModel
from learner.versions.probe import probe_of_model, record
from serving.engines.local import LocalEngine
from serving.engines.local.model import Decoder

SPEECH = [tuple(range(start, start + 30)) for start in range(5)]


class Recording:
    """An engine beside the records of a learner, which computes with transformers."""

    def __init__(self, world: World) -> None:
        self.world, self.blobs = world, FsspecBlobs(world.directory / "recorded")
        self.first = probe_of_model(world.model_dir, "cpu")
        put_probe(self.blobs, ANCHOR, self.first)
        self.looks = 0
        settings = ServingSettings(local=LocalEngineSettings(slots=2))
        self.engine = LocalEngine(
            settings, world.model_dir, world.weights, world.anchor, recent=self._recent, blobs=self.blobs
        )

    def _recent(self) -> list[tuple[int, ...]]:
        self.looks += 1
        return SPEECH

    def publish(self, number: int, change: Callable[[dict[str, Any]], None]) -> ProbeRecord:
        """Publish a version, and return the record that is true of it."""
        ref = self.world.publish(number, change)
        directory = self.world.directory / f"recorded-{number}"
        shutil.copytree(self.world.model_dir, directory)
        shutil.copy(self.world.directory / f"v{number}" / "model.safetensors", directory)
        self.engine.load(ref)
        return record(PolicyModel(directory, "cpu", frozen=True), self.first, ref.digest)


def moved(world: World, by: float) -> Callable[[dict[str, Any]], None]:
    """Return a change to the anchor's weights, those of its feed-forward layers times 1 + `by`."""

    def change(tensors: dict[str, Any]) -> None:
        for name, tensor in world.models[ANCHOR].named_parameters():
            tensors[name] = tensor.detach() * (1 + by if "mlp" in name else 1.0)

    return change


@pytest.fixture
def recording(world: World) -> Recording:
    return Recording(world)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the tokens that any version computes."""
    counts: list[int] = []
    forward = Decoder.forward

    def counting(self: Decoder, cache: Any, rows: Any, tokens: Any, **options: Any) -> torch.Tensor:
        counts.append(len(tokens))
        return forward(self, cache, rows, tokens, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "forward", counting)
        yield counts


def test_the_figures_are_those_recorded_and_an_eighth_is_computed(
    recording: Recording, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = recording.publish(401, moved(world, 0.05))
    put_probe(recording.blobs, base_ref(401), true)
    with counted(monkeypatch) as counts:
        found = recording.engine.probe(base_ref(401))
    assert found["kl_to_live"] >= figures(true, recording.first)["kl_to_live"] > 0
    assert (found["finite"], found["entropy"]) == (1, true.entropy)
    of_users = 2 * sum(map(len, SPEECH))  # by both versions
    assert sum(counts) == of_users + sum(map(len, true.token_ids)) // 8

    again = recording.publish(402, moved(world, 0.06))
    put_probe(recording.blobs, base_ref(402), again)
    with counted(monkeypatch) as counts:
        recording.engine.probe(base_ref(402))
    assert sum(counts) == of_users // 2 + sum(map(len, true.token_ids)) // 8, "of the live version it is known"
    assert recording.looks == 1


def test_a_version_whose_record_lies_is_refused(recording: Recording, world: World) -> None:
    """The record is of a version near the live one; what was published is far away."""
    good = recording.publish(403, moved(world, 0.01))
    bad = recording.publish(404, moved(world, 3.0))
    put_probe(recording.blobs, base_ref(404), msgspec.structs.replace(good, weights_digest=bad.weights_digest))
    with pytest.raises(WeightsError, match=r"version .*404 answers otherwise than its publisher recorded"):
        recording.engine.probe(base_ref(404))
    wrong = recording.engine.what_is_wrong(base_ref(404))
    assert wrong is not None
    assert "otherwise" in wrong


LIES: dict[str, Callable[[ProbeRecord], dict[str, Any]]] = {
    "the mean difference": lambda live: {"logprobs": live.logprobs},
    "choices": lambda live: {"choice_logprobs": live.choice_logprobs},  # its KL to the live version is nothing
    "entropies": lambda live: {"entropies": live.entropies, "entropy": live.entropy},
    "its entropy is": lambda live: {"entropy": live.entropy},
}
"""What is said of a record, by the lie."""


def test_a_record_that_lies_in_one_thing_is_refused(recording: Recording, world: World) -> None:
    """Each time all else is true of the version, and the lie is what is true of the one that serves."""
    true = recording.publish(409, moved(world, 0.5))
    put_probe(recording.blobs, base_ref(409), true)
    assert recording.engine.probe(base_ref(409))["kl_to_live"] > 0.01
    for number, (found, lie) in enumerate(LIES.items(), start=410):
        recording.publish(number, moved(world, 0.5))
        put_probe(recording.blobs, base_ref(number), msgspec.structs.replace(true, **lie(recording.first)))
        with pytest.raises(WeightsError, match=f"version .*{number} answers otherwise .* recorded: {found}"):
            recording.engine.probe(base_ref(number))


def test_an_entropy_that_cannot_be_compared_is_computed(recording: Recording, world: World) -> None:
    """Records of earlier releases have only the mean; whatever it says, the engine's own decides."""
    true = recording.publish(420, moved(world, 0.05))
    put_probe(recording.blobs, base_ref(420), msgspec.structs.replace(true, entropies=(), entropy=100.0))
    assert recording.engine.probe(base_ref(420))["entropy"] == pytest.approx(true.entropy, rel=0.2)
    lie: dict[str, Any] = {"entropies": (), "choice_logprobs": recording.first.choice_logprobs}
    put_probe(recording.blobs, base_ref(421), msgspec.structs.replace(recording.publish(421, moved(world, 0.5)), **lie))
    with pytest.raises(WeightsError, match="choices"):
        recording.engine.probe(base_ref(421))


def test_a_version_that_is_not_finite_is_found_whatever_its_record_says(recording: Recording, world: World) -> None:
    def broken(tensors: dict[str, Any]) -> None:
        moved(world, 0.01)(tensors)
        tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], float("nan"))

    good = recording.publish(405, moved(world, 0.01))
    ref = world.publish(406, broken)
    recording.engine.load(ref)
    put_probe(recording.blobs, base_ref(406), msgspec.structs.replace(good, weights_digest=ref.digest))
    assert recording.engine.probe(base_ref(406))["finite"] == 0
    put_probe(recording.blobs, base_ref(405), msgspec.structs.replace(good, finite=False))
    assert recording.engine.probe(base_ref(405))["finite"] == 0


@pytest.mark.parametrize(("number", "is_its_own"), [(407, True), (408, False)])
def test_a_record_that_cannot_be_read(recording: Recording, world: World, number: int, is_its_own: bool) -> None:
    """Nobody has to believe a version whose own record is damaged; what serves goes on being compared with."""
    version = base_ref(number)
    put_probe(recording.blobs, version, recording.publish(number, moved(world, 0.05)))
    recording.blobs.put(probe_path(version if is_its_own else ANCHOR), b"something else")
    if is_its_own:
        with pytest.raises(WeightsError, match="corrupt"):
            recording.engine.probe(version)
    else:
        assert 0 < recording.engine.probe(version)["kl_to_live"] < 1
