"""Releases with the real embedded engine: versions of the shipped model are verified, served and rolled back."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_world import MODEL
from local_world import Answer, answers, request
from numbered import numbered
from planted import plant
from release_world import START, ReleaseWorld
from safetensors.torch import load_file, save_file
from stepping import step

from core import telemetry
from core.events import PolicyVersion
from core.ids import base_ref
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine
from serving.releases import LoopTimer, StoreTraffic

MakeWorld = Callable[..., ReleaseWorld]
SHARD = "model.safetensors"


class EmbeddedWorld(ReleaseWorld):
    """A world with the shipped tiny model in the engine within the process."""

    noise = 1e-3

    def make_model(self) -> Path:
        return MODEL

    def shards_at(self, path: Path, seed: int) -> list[Path]:
        generator = torch.Generator().manual_seed(seed)
        tensors = load_file(MODEL / SHARD)
        save_file(
            {k: v.float() + self.noise * torch.randn(v.shape, generator=generator) for k, v in tensors.items()}, path
        )
        return [path]

    def start_engine(self, name: str) -> None:
        self.engines[name] = LocalEngine(
            ServingSettings(local=LocalEngineSettings(slots=4)), MODEL, self.weights, self.anchor()
        )
        self.engines[name].start()

    def stop(self) -> None:
        super().stop()
        for engine in self.engines.values():
            engine.close()


@pytest.fixture
def world(make_world: MakeWorld) -> ReleaseWorld:
    world = make_world(kind=EmbeddedWorld)
    world.start()
    return world


def speak(world: ReleaseWorld, version: int | None = None) -> Answer:
    engine = world.engines["local"]
    return answers(engine, request([5, 6, 7], max_tokens=4, version=version))[0]


def test_a_version_is_released_speaks_and_is_taken_back(world: ReleaseWorld) -> None:
    engine: LocalEngine = world.engines["local"]
    assert speak(world).versions == [1] * 4
    assert world.release() == 2
    assert speak(world).versions == [2] * 4
    figures = world.statuses()["local"].figures[2]
    assert 0 < figures["kl_to_live"] < 0.1
    with world.store.look() as view:
        policy = view.policies.get(base_ref(2))
    assert isinstance(policy, PolicyVersion)
    assert engine.loaded()[base_ref(2)] == policy.digest
    world.carry_out("rollback", 1)
    assert speak(world).versions == [1] * 4
    assert world.states() == {1: "live", 2: "rolled_back"}
    assert world.check_one_lives() == 1
    assert {held.version for held in engine.loaded()} == {1}


@pytest.mark.parametrize(
    ("noise", "why"), [(float("nan"), "its outputs are not finite"), (2.0, "KL to the live version")]
)
def test_the_gate_looks_at_what_the_engine_computes(world: ReleaseWorld, noise: float, why: str) -> None:
    world.noise = noise  # type: ignore[attr-defined]
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "rejected"}
    assert why in world.why(2)
    assert speak(world).versions == [1] * 4


def test_outcomes_are_timed_to_the_first_token_that_learned_from_them(world: ReleaseWorld) -> None:
    timer = LoopTimer(START)
    world.engines["local"].on_first_token = timer.first_token
    version = world.publish(arrivals=[START, START])
    with world.store.look() as view:
        policy = view.policies.get(base_ref(version))
    assert policy is not None
    timer.published(policy)
    world.run()
    before = _timed()
    speak(world)
    speak(world)
    assert _timed() == before + 2


@pytest.mark.parametrize(("verdict", "live"), [("promote", 2), ("rollback", 1)])
def test_a_canary_speaks_to_its_users_who_decide(make_world: MakeWorld, verdict: str, live: int) -> None:
    """Users are assigned from the store, served by their arm's version, and their rewards decide."""
    world = make_world(
        kind=EmbeddedWorld,
        settings={
            "release.canary.enabled": "on",
            "release.canary.share": 0.5,
            "release.canary.maturity_s": 1.0,
            "release.canary.min_users": 5,
        },
    )
    world.start()
    world.publish()
    world.run()
    assert world.states() == {1: "live", 2: "canary"}
    assert speak(world).versions == [1] * 4
    traffic = StoreTraffic(world.store, "local", world.release_settings, world.clock)
    units = [f"user-{number}" for number in range(120)]  # of 60, the salt leaves an arm without its twenty once in 160
    assigned = [traffic.assign(unit) for unit in units]
    assert traffic.assign(units[0]) == assigned[0], "the same user, the same arm"
    for arm, version in (("canary", 2), ("live", 1)):
        chosen = [assignment for assignment in assigned if assignment.arm == arm]
        assert speak(world, numbered(chosen[0].version)).versions == [version] * 4
        experiment_id = chosen[0].experiment_id
        reward = 1.0 if version == live else 0.0
        plant(world, len(chosen), reward, arm=arm, version=version, experiment_id=experiment_id)
    world.pass_time(2)
    (experiment,) = world.experiments()
    assert experiment.verdict == verdict
    assert experiment.figures["users"] == sum(each.arm == "canary" for each in assigned)
    assert experiment.figures["control_users"] == sum(each.arm == "live" for each in assigned)
    assert speak(world).versions == [live] * 4
    assert world.check_one_lives() == live
    step(traffic, 0)
    assert traffic.assign(units[0]).arm == "live"


def _timed() -> float:
    return telemetry.REGISTRY.get_sample_value("onward_feedback_to_served_seconds_count") or 0
