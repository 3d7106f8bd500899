"""KTO: late turns train without importance weights."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logged_world import World, logged_past, make_reward, make_turn, manifests, settle

from learner.objective.kto import kto_loss, reference_of, turn_ratios
from learner.versions.manifest import prove_exactly_once

MakeWorld = Callable[[str], World]


def kto(
    logprobs_N: torch.Tensor,
    anchor_N: torch.Tensor,
    turns_N: torch.Tensor,
    late_M: torch.Tensor,
    gain_M: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Return the loss of turns in one micro-batch; the batch's other turns are unknown to it."""
    ratio_M = turn_ratios(logprobs_N, anchor_N, turns_N, len(late_M), beta)
    present_M = torch.zeros_like(late_M).index_fill(0, turns_N, True)
    return kto_loss(ratio_M, late_M & present_M, gain_M, reference_of(ratio_M.detach()[present_M]), beta)


def test_the_loss_is_ktos() -> None:
    """Two tokens a turn, computed by hand."""
    logprobs_N = torch.tensor([-1.0, -1.0, -2.0, -2.0, -3.0, -3.0], requires_grad=True)
    anchor_N = torch.tensor([-1.5, -1.5, -2.0, -2.0, -1.0, -1.0])
    turns_N = torch.tensor([0, 0, 1, 1, 2, 2])
    late_M, gain_M = torch.tensor([True, True, False, True]), torch.tensor([1.0, -0.5, 1.0, 1.0])
    beta = 0.5
    loss = kto(logprobs_N, anchor_N, turns_N, late_M, gain_M, beta)
    reference = max(0.0, (0.5 * 1 + 0 + 0.5 * -4) / 3)
    better = 1 - 1 / (1 + math.exp(-(0.5 - reference)))
    worse = 1 - 1 / (1 + math.exp(-(reference - 0.0)))
    assert loss.item() == pytest.approx((better + 0.5 * worse) / beta)
    (gradient,) = torch.autograd.grad(loss, logprobs_N)
    assert (gradient[:2] < 0).all(), "what is better becomes likelier"
    assert (gradient[2:4] > 0).all(), "what is worse less likely"
    assert (gradient[4:] == 0).all(), "what is not late has another loss"


Floats = np.ndarray  # of float64
Case = tuple[Floats, Floats, Floats, Floats, Floats, float]  # log-probabilities, anchor's, turns, late, gain, beta


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw turns in any order, some of the batch's in other micro-batches."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    absent = draw(st.integers(0, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, m = sum(lengths), len(lengths) + absent
    logp = -rng.exponential(2.0, n)
    turns = np.repeat(rng.permutation(m)[: len(lengths)], lengths)
    gain = rng.choice([-1.0, -0.3, 0.0, 0.5, 1.0], m)
    return logp, logp - rng.normal(0, 1.0, n), turns, rng.random(m) < 0.7, gain, draw(st.sampled_from([0.05, 0.3, 2.0]))


def by_definition(case: Case) -> tuple[float, Floats]:
    """Return loss and gradient, turn by turn."""
    logp, anchor, turns, late, gain, beta = case
    ratio = {turn: beta * (logp - anchor)[turns == turn].sum() for turn in set(turns.tolist())}
    z = max(0.0, np.mean(list(ratio.values())))
    loss, gradient = 0.0, np.zeros_like(logp)
    for turn, r in ratio.items():
        if late[turn]:
            sign, size = np.sign(gain[turn]), abs(gain[turn])
            sigmoid = 1 / (1 + np.exp(-sign * (r - z)))
            loss += size * (1 - sigmoid) / beta
            gradient[turns == turn] = -sign * size * sigmoid * (1 - sigmoid)
    return loss, gradient


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_loss_and_gradient_by_definition(case: Case) -> None:
    logp, anchor, turns, late, gain, beta = case
    logprobs_N = torch.tensor(logp, requires_grad=True)
    found = kto(logprobs_N, *map(torch.tensor, (anchor, turns, late, gain)), beta)
    (gradient_N,) = torch.autograd.grad(found, logprobs_N)
    loss, gradient = by_definition(case)
    assert found.item() == pytest.approx(loss, abs=1e-9)
    np.testing.assert_allclose(gradient_N.numpy(), gradient, atol=1e-9)


def test_what_gained_nothing_teaches_nothing() -> None:
    logprobs_N = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = kto(logprobs_N, torch.zeros(2), torch.tensor([0, 1]), torch.tensor([True] * 2), torch.zeros(2), 0.1)
    assert loss.item() == 0


def test_late_outcomes_train_by_config_and_are_counted(make_world: MakeWorld) -> None:
    late = [make_turn(50), make_turn(51)]
    beyond = make_turn(52)
    weights = {}
    for name in ("baseline", "kto"):
        world = make_world(name)
        learner = world.learner(
            settings={"admission.late": name, "admission.default_max_age_s": 10.0, "admission.late_max_age_s": 1000.0}
        )
        told = [(turn, make_reward(turn, 1.0, after_s=600)) for turn in late]
        world.tell(*logged_past(5), *told, (beyond, make_reward(beyond, 1.0, after_s=2000)))
        settle(learner)
        (only,) = manifests(world)
        records = {record.inference_id: record for record in only.turns}
        assert records[beyond.inference_id].dropped == "too_old"
        for turn in late:
            record = records[turn.inference_id]
            assert (record.late, record.dropped) == ((True, None) if name == "kto" else (False, "too_old"))
        metrics = learner._reliving.published(learner.newest).metrics  # type: ignore[union-attr, arg-type]
        expected = {"late_turns": 2.0, "dropped_too_old": 1.0} if name == "kto" else {"dropped_too_old": 3.0}
        assert {key: value for key, value in metrics.items() if key in ("late_turns", "dropped_too_old")} == expected
        weights[name] = torch.cat([p.detach().flatten() for p in learner._rank_group._state.policy.parameters()])
        learner.close()
    assert not torch.equal(weights["baseline"], weights["kto"])


def test_a_late_revision_trains_once(make_world: MakeWorld) -> None:
    """A turn that already trained counts by what its reward gained; the proof covers both paths."""
    world = make_world("a")
    learner = world.learner(settings={"admission.late": "kto", "admission.default_max_age_s": 10.0})
    past = logged_past(8)
    world.tell(*past)
    settle(learner)
    world.tell(*[(turn, make_reward(turn, 0.5, revision=1, after_s=600)) for turn, _ in past])
    settle(learner)
    world.tell(*[(turn, make_reward(turn, 0.25, revision=2, after_s=1200)) for turn, _ in past])
    settle(learner)
    world.tell(*[(turn, make_reward(turn, -0.75, revision=3, after_s=1800)) for turn, _ in past])
    settle(learner)
    lineage = manifests(world)
    assert [{record.late for record in one.turns} for one in lineage] == [{False}, {True}, {True}, {True}]
    with world.store.look() as view:
        rows = [view.policies.get(one.version) for one in lineage[2:]]
    small, large = (row.metrics["kto_loss"] for row in rows if row is not None)
    assert large == pytest.approx(4 * small, rel=0.2), "a loss of 0.25 moves the policy a quarter as far as one of 1"
    assert prove_exactly_once(lineage) == 32
    learner.close()


def test_thumbs_train_by_kto_by_config(make_world: MakeWorld) -> None:
    """Age does not matter; turns with other outcomes keep their usual advantages."""
    world = make_world("a")
    learner = world.learner(settings={"admission.kto_outcomes": ("thumb",)})
    past = logged_past(8)
    told = [(turn, msgspec.structs.replace(reward, components={"thumb": reward.value})) for turn, reward in past[:3]]
    mixed = past[3][0], msgspec.structs.replace(past[3][1], components={"thumb": 0.5, "accepted": 0.5})
    world.tell(*told, mixed, *past[4:])
    settle(learner)
    (only,) = manifests(world)
    assert [(record.late, record.dropped) for record in only.turns] == [(True, None)] * 3 + [(False, None)] * 5
    assert all((record.credit == 0) == record.late for record in only.turns)
    learner.close()
