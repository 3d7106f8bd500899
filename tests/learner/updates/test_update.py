"""The update as a whole: by default it equals the code written out here, bit for bit.

Legend: N sampled tokens of a micro-batch, M turns of the batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from changed_settings import changed
from logged_world import MODEL
from past_batches import DEFAULT, some_batch
from torch import Tensor, nn

from core.events import Credit, VersionSpan
from core.ids import base_ref
from core.settings import AdmissionSettings, AdvantageSettings, ComputeSettings, LearnerSettings, OptimizerSettings
from learner.model.policy_model import PolicyModel
from learner.sequences.joining import merge
from learner.sequences.scored import Applied, ScoredTurn
from learner.sequences.tensors import MicroBatch, micro_batches
from learner.updates.kept import begin_saving, finish_saving, load, small_part
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update


class ByHand:
    """The policy gradient with truncated ratios, a value head, and k3 in the loss, over all tokens."""

    def __init__(self) -> None:
        self.state, self.anchor = make_state(MODEL, DEFAULT), PolicyModel(MODEL, "cpu")
        hidden = self.state.policy.hidden_size
        self.value = nn.Sequential(nn.Linear(hidden, 64), nn.GELU(), nn.Linear(64, 1))
        self.value.load_state_dict(self.state.advantages.state_dict()["head"])
        self.optimizer = torch.optim.AdamW(self.value.parameters(), lr=2e-3, foreach=True)
        self.weighed = np.zeros((0, 2))  # all rewards so far, with their weights
        self.scale = 1.0

    def step(self, batch: Sequence[ScoredTurn]) -> None:
        rewards_M = torch.tensor([scored.reward.value for scored in batch])
        self.weighed[:, 1] *= 0.95
        self.weighed = np.vstack([self.weighed, [(reward, 1.0) for reward in rewards_M.tolist()]])
        lately = np.cov(self.weighed[:, 0], aweights=self.weighed[:, 1]) ** 0.5
        self.scale = max(float(rewards_M.double().std()), 0.5 * float(lately))
        parts = micro_batches(merge(batch), batch, 1024, "cpu")
        num_tokens = sum(len(part.targets_N) for part in parts)
        for part in parts:
            loss_N, fit = self._losses(part, rewards_M)
            (loss_N.sum() / num_tokens + fit * (len(part.targets_N) / num_tokens)).backward()
        nn.utils.clip_grad_norm_(self.state.policy.parameters(), 1.0)
        for optimizer in (self.state.optimizer, self.optimizer):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _losses(self, part: MicroBatch, rewards_M: Tensor) -> tuple[Tensor, Tensor]:
        policy, anchor = self.state.policy, self.anchor
        hidden_ND = policy.hidden_states(part)
        logprobs_N, _ = policy.score(hidden_ND, part)
        with torch.no_grad():
            anchor_N, _ = anchor.score(anchor.hidden_states(part), part)
        values_N = self.value(hidden_ND.detach())[:, 0]
        advantage_N = (rewards_M[part.turns_N] - values_N.detach()) / torch.tensor(self.scale)
        ratio_N = (logprobs_N.detach() - part.behaviour_N).exp().clamp(max=2.0)
        gap_N = anchor_N - logprobs_N
        loss_N = -ratio_N * advantage_N * logprobs_N + 0.2 * (gap_N.exp() - 1 - gap_N)
        return loss_N, nn.functional.mse_loss(values_N, rewards_M[part.turns_N])


def weights(state: LearnerState) -> list[Tensor]:
    return [parameter.detach() for parameter in state.policy.parameters()]


def test_the_default_update_bit_for_bit() -> None:
    by_hand, state = ByHand(), make_state(MODEL, DEFAULT)
    for seed in range(3):
        by_hand.step(some_batch(seed))
        result = update(state, some_batch(seed), DEFAULT)
        assert all(record.dropped is None for record in result.records)
    assert all(map(torch.equal, weights(state), weights(by_hand.state)))
    assert not all(map(torch.equal, weights(state), weights(make_state(MODEL, DEFAULT))))


def trained(settings: Mapping[str, object] = {}) -> list[Tensor]:
    chosen = changed(LearnerSettings(), settings)
    state = make_state(MODEL, chosen)
    for seed in range(2):
        metrics = update(state, some_batch(seed, 6), chosen).metrics
        assert all(map(torch.isfinite, map(torch.tensor, metrics.values())))
    return weights(state)


def test_every_choice_trains() -> None:
    """Each option also differs from the default."""
    usual = trained()
    for options in (
        {"advantage.baseline": "beta"},
        {"advantage.baseline": "leave_one_out"},
        {
            "objective.loss": "ppo",
            "objective.correction.method": "none",
            "objective.clip_low": 0.01,
            "objective.clip_high": 0.01,
        },
        {"objective.correction.method": "geometric", "objective.correction.geometric_band": (0.999, 1.001)},
        {"objective.kl.estimator": "k1", "objective.kl.placement": "reward"},
    ):
        found = trained(settings=options)
        assert not all(map(torch.equal, found, usual)), options
        assert all(bool(torch.isfinite(weight).all()) for weight in found), options


@pytest.mark.parametrize("advantage", ["value", "ema", "beta", "batch", "centre", "leave_one_out", "raw"])
@pytest.mark.parametrize("count", [1, 2])
def test_answers_of_a_single_token(advantage: str, count: int) -> None:
    """One answer cannot tell what is better; two can."""
    settings = changed(LearnerSettings(), {"advantage.baseline": advantage})
    state = make_state(MODEL, settings)
    before = [weight.clone() for weight in weights(state)]
    batch = [cut(scored, value) for scored, value in zip(some_batch(0, count), (1.0, -1.0), strict=False)]
    result = update(state, batch, settings)
    assert result.metrics["tokens"] == count
    assert all(map(math.isfinite, result.metrics.values()))
    assert {record.dropped for record in result.records} == ({"all_alike"} if count == 1 else {None})
    assert all(map(torch.equal, before, weights(state))) == (count == 1)


def cut(scored: ScoredTurn, value: float) -> ScoredTurn:
    """Cut an answer to its first token."""
    turn, reward = scored.turn, scored.reward
    spans = tuple(VersionSpan(start=0, end=1, version=span.version) for span in turn.policy_versions[:1])
    short = msgspec.structs.replace(
        turn, token_ids=turn.token_ids[:1], logprobs=turn.logprobs[:1], policy_versions=spans
    )
    return ScoredTurn(short, msgspec.structs.replace(reward, value=value))


def test_credits_of_one_turn_do_not_let_all_others_train_that_are_alike() -> None:
    """Their spread is 0: each would be praised by its whole reward over the least scale there is."""
    batch = [replace(scored, reward=msgspec.structs.replace(scored.reward, value=1.0)) for scored in some_batch(0, 8)]
    blamed = msgspec.structs.replace(batch[0].reward, credits=(Credit(start=0, end=2, value=-1.0),))
    state = make_state(MODEL, DEFAULT)
    result = update(state, [replace(batch[0], reward=blamed), *batch[1:]], DEFAULT)
    assert [record.dropped for record in result.records] == [None] + ["all_alike"] * 7


@pytest.mark.parametrize("advantage", ["value", "ema", "batch", "raw"])
def test_rewards_that_are_all_alike_train_no_weights_and_are_counted(advantage: str) -> None:
    settings = LearnerSettings(advantage=AdvantageSettings(baseline=advantage))  # type: ignore[arg-type]
    state = make_state(MODEL, settings)
    before = [weight.clone() for weight in weights(state)]
    alike = [replace(scored, reward=msgspec.structs.replace(scored.reward, value=1.0)) for scored in some_batch(0)]
    for _ in range(2):
        result = update(state, alike, settings)
        assert {record.dropped for record in result.records} == {"all_alike"}
        assert all(map(torch.equal, weights(state), before))
    applied = Applied(revision=0, reward=0.0, scale=1.0, version=base_ref(1), received_at=alike[-1].turn.received_at)
    corrected = [*alike[:-1], replace(alike[-1], applied=applied)]
    kept = [record.dropped for record in update(state, corrected, settings).records]
    assert kept == ["all_alike"] * (len(alike) - 1) + [None]


def test_with_a_value_head_alike_rewards_train_once_they_have_differed() -> None:
    """By how much each is better than was expected of it, in the spread of the updates before."""
    settings = LearnerSettings()
    state = make_state(MODEL, settings)
    usual = update(state, some_batch(0), settings).records[0].scale
    before = [weight.clone() for weight in weights(state)]
    alike = [replace(scored, reward=msgspec.structs.replace(scored.reward, value=1.0)) for scored in some_batch(0)]
    result = update(state, alike, settings)
    assert "all_alike" not in {record.dropped for record in result.records}
    assert not all(map(torch.equal, weights(state), before))
    for record in result.records:
        assert usual / 4 < record.scale <= usual
        assert record.credit == pytest.approx((1 - record.baseline) / record.scale, rel=1e-4)


def test_activations_that_are_computed_again_are_the_same() -> None:
    assert all(map(torch.equal, trained(settings={"compute.gradient_checkpointing": True}), trained()))


def test_in_low_precision_the_weights_stay_whole() -> None:
    """Figures equal those of float32 except for rounding; weights and optimizer are float32."""
    exact, rough = (
        LearnerSettings(
            compute=ComputeSettings(precision=each), admission=AdmissionSettings(max_divergence=1e9, min_ess=0.0)
        )
        for each in ("float32", "bfloat16")
    )
    one, two = make_state(MODEL, exact), make_state(MODEL, rough)
    expected, found = (update(state, some_batch(0), chosen).metrics for state, chosen in ((one, exact), (two, rough)))
    assert found["loss"] != expected["loss"]
    for name in ("loss", "entropy", "gradient_norm"):
        assert abs(found[name] - expected[name]) < 0.03 * abs(expected[name]) + 1e-3, name
    moments = [value for state in two.optimizer.state.values() for value in state.values()]
    assert {tensor.dtype for tensor in (*weights(two), *moments)} == {torch.float32}


def test_the_learning_rate_rises_and_stays_and_obeys_the_settings_after_a_restart(tmp_path: Path) -> None:
    settings = LearnerSettings(optimizer=OptimizerSettings(warmup_updates=4, learning_rate=1e-3))
    state = make_state(MODEL, settings)
    rates = []
    for seed in range(6):
        update(state, some_batch(seed, 6), settings)
        rates.append(state.optimizer.param_groups[0]["lr"])
    assert rates == [0.00025, 0.0005, 0.00075, 0.001, 0.001, 0.001]
    slower = LearnerSettings(optimizer=OptimizerSettings(learning_rate=1e-4, beta1=0.5, weight_decay=0.25))
    again = make_state(MODEL, slower)
    begin_saving(state, tmp_path)
    finish_saving(state)
    load(again, small_part(state), tmp_path, [])
    update(again, some_batch(7, 6), slower)
    (group,) = again.optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-4, (0.5, 0.95), 0.25)
