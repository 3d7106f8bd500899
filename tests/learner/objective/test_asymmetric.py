"""Asymmetric clipping of late turns: values by hand, and what an update makes of them."""

import math
from collections.abc import Callable

import pytest
import torch
from logged_world import World, logged_past, make_reward, make_turn, manifests, settle

from learner.objective.asymmetric import asymmetric_loss
from learner.versions.manifest import prove_exactly_once

MakeWorld = Callable[[str], World]
LATE = {"admission.late": "asymmetric", "admission.default_max_age_s": 10.0, "admission.late_max_age_s": 1000.0}


def test_only_what_was_bad_fades_as_it_becomes_unlikely() -> None:
    """Four turns of two tokens: good and bad, each become less likely by e^-2 and likelier by e^2."""
    behaviour_N = torch.tensor([-2.0] * 8)
    logprobs_N = torch.tensor([-3.0, -3.0, -1.0, -1.0, -3.0, -3.0, -1.0, -1.0], requires_grad=True)
    advantage_N = torch.tensor([0.5, 0.5, 0.5, 0.5, -0.5, -0.5, -0.5, -0.5])
    loss_N = asymmetric_loss(logprobs_N, behaviour_N, advantage_N, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    fades = math.exp(-2.0)
    expected = [1.5, 1.5, 0.5, 0.5, -1.5 * fades, -1.5 * fades, -0.5, -0.5]
    assert loss_N.tolist() == pytest.approx(expected)
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), logprobs_N)
    assert gradient_N.tolist() == pytest.approx([-0.5] * 4 + [0.5 * fades] * 2 + [0.5] * 2)


def test_the_turn_decides_how_far_a_token_fades() -> None:
    """A token that became likelier fades with its turn, which became less likely; credits differ within it."""
    logprobs_N, behaviour_N = torch.tensor([-1.0, -4.0]), torch.tensor([-2.0, -2.0])
    loss_N = asymmetric_loss(logprobs_N, behaviour_N, torch.tensor([-1.0, 1.0]), torch.tensor([0, 0]))
    assert loss_N.tolist() == pytest.approx([-math.exp(-1.0), 4.0])


def test_late_outcomes_train_by_config_and_replay_to_the_bit(make_world: MakeWorld) -> None:
    turn, beyond = make_turn(50), make_turn(52)
    told = (turn, make_reward(turn, 1.0, after_s=600)), (beyond, make_reward(beyond, 1.0, after_s=2000))
    weights = {}
    for name, settings in {"baseline": {**LATE, "admission.late": "baseline"}, "a": LATE, "again": LATE}.items():
        world = make_world(name)
        learner = world.learner(settings=settings)
        world.tell(*logged_past(5), *told)
        settle(learner)
        (only,) = manifests(world)
        records = {record.inference_id: record for record in only.turns}
        assert records[beyond.inference_id].dropped == "too_old"
        found = records[turn.inference_id]
        assert (found.late, found.dropped) == ((False, "too_old") if name == "baseline" else (True, None))
        assert found.credit != 0
        weights[name] = torch.cat([p.detach().flatten() for p in learner.base._rank_group.state.policy.parameters()])
        learner.close()
    assert torch.equal(weights["a"], weights["again"])
    assert not torch.equal(weights["a"], weights["baseline"])


def test_a_late_correction_trains_what_it_adds(make_world: MakeWorld) -> None:
    world = make_world("a")
    learner = world.learner(settings=LATE)
    past = logged_past(8)
    world.tell(*past)
    settle(learner)
    world.tell(*[(turn, make_reward(turn, -0.25, revision=1, after_s=600)) for turn, _ in past])
    settle(learner)
    first, second = manifests(world)
    assert {record.late for record in second.turns} == {True}
    assert prove_exactly_once([first, second]) == 16
    applied = {record.inference_id: record for record in first.turns}
    for record in second.turns:
        before = applied[record.inference_id]
        assert record.credit == pytest.approx((-0.25 - before.reward) / before.scale, rel=1e-5)
    learner.close()
