"""A model that is too large for one device: torchrun starts several processes, with the results of one."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from logged_world import World, logged_past, make_reward, make_turn

from learner.model.ranks import ALONE
from learner.timing import is_of_machine
from learner.versions.checkpoint import Checkpoints

pytestmark = pytest.mark.timeout(600)
MakeWorld = Callable[[str], World]
SCRIPT = Path(__file__).parents[1] / "parts" / "ranks_script.py"
# Sequences of a batch in several micro-batches, an odd number, so that a process has one that does not count.
SETTINGS: dict[str, object] = {
    "batch.turns": 6,
    "batch.min_turns": 6,
    "compute.micro_batch_tokens": 96,
    "objective.kl.coefficient": 0.01,
    "advantage.baseline": "value",
    "users.max_share": 0.3,
    "users.distrust": True,
}


def train(world: World, processes: int, updates: int, settings: Mapping[str, object] = {}) -> list[dict[str, float]]:
    """Return the figures of each update."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [str(SCRIPT), str(world.directory), str(updates), json.dumps({**SETTINGS, **settings})]
    paths = os.pathsep.join([str(SCRIPT.parent), *filter(None, sys.path)])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # all of it: what torchrun says last hides what its processes said
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def assert_alike(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            if is_of_machine(name):
                continue
            assert math.isclose(value, other[name], rel_tol=1e-4, abs_tol=1e-5), name


def weights(world: World) -> dict[str, torch.Tensor]:
    newest, faults = Checkpoints(world.directory / "learner").newest()
    assert newest is not None
    assert not faults
    return world.weights_of(newest.version)


def assert_same_weights(one: World, other: World) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=2e-6, msg=name)


def test_two_processes_go_on_from_one_and_learn_what_it_does(make_world: MakeWorld) -> None:
    one, two = make_world("one"), make_world("two")
    for world in (one, two):
        world.tell(*logged_past(24))
    apart = train(one, 1, 4)
    assert len({figures["loss"] for figures in apart}) == 4, "the updates are different ones"
    shared = train(two, 1, 1) + train(two, 2, 3)
    assert_alike(shared, apart)
    assert_same_weights(one, two)


def test_adapters_are_shared_out_too_and_one_process_goes_on_from_two(make_world: MakeWorld) -> None:
    one, two = make_world("one"), make_world("two")
    for world in (one, two):
        world.tell(*logged_past(12))
    assert_alike(
        train(two, 2, 1, settings={"lora.rank": 4}) + train(two, 1, 1, settings={"lora.rank": 4}),
        train(one, 1, 2, settings={"lora.rank": 4}),
    )
    assert_same_weights(one, two)


def test_a_loss_that_is_no_number_is_skipped_by_all_processes(make_world: MakeWorld) -> None:
    """If one process decided otherwise, the next update would wait for ever."""
    world = make_world("world")
    spoilt = make_turn(40)
    world.tell((spoilt, make_reward(spoilt, 1e39)), *logged_past(5))
    world.tell(*logged_past(6, seed=9))
    (figures,) = train(world, 3, 1)
    assert math.isfinite(figures["loss"])
    assert len(list((world.directory / "learner" / "skipped").iterdir())) == 1
    with world.store.look() as view:
        (alarm,) = view.alarms.that_are_open()
    assert alarm.opening.monitor == "non_finite_loss"


def test_alone_a_process_leads_itself() -> None:
    assert ALONE.leads
    assert list(ALONE.share("abc")) == [("a", True), ("b", True), ("c", True)]
    assert ALONE.gather("mine") == ["mine"]
