"""A prompt that all sequences of an update begin with is computed once, and changes nothing but the time."""

import msgspec
import pytest
import torch
from changed_settings import changed
from logged_world import MODEL
from past_batches import some_batch
from torch import Tensor

from core.errors import ConfigError
from core.settings import ComputeSettings, LearnerSettings
from learner.model.policy_model import PolicyModel
from learner.sequences.joining import TrainingSequence, TurnSpan, merge, without_common_prompt
from learner.sequences.scored import ScoredTurn
from learner.sequences.shared_prompt import require_shareable
from learner.sequences.tensors import micro_batches
from learner.updates.state import make_state
from learner.updates.update import update

SYSTEM = tuple(range(40, 70))
SETTINGS = {"advantage.baseline": "raw", "admission.max_divergence": 1e9, "admission.min_ess": 0.0}


def batch_with_a_prompt() -> list[ScoredTurn]:
    return [
        ScoredTurn(
            msgspec.structs.replace(each.turn, prompt_token_ids=SYSTEM + each.turn.prompt_token_ids), each.reward
        )
        for each in some_batch(0)
    ]


def test_the_gradient_is_the_same_and_fewer_positions_are_computed() -> None:
    batch, found, positions = batch_with_a_prompt(), list[list[Tensor]](), list[int]()
    for shared in (False, True):
        policy = PolicyModel(MODEL, "cpu")
        parts = micro_batches(merge(batch), batch, 256, "cpu", shared=shared)
        assert len(parts) > 1
        for part in parts:
            policy.evaluate(part)[1].sum().backward()
        found.append([parameter.grad for parameter in policy.parameters() if parameter.grad is not None])
        positions.append(sum(part.positions for part in parts))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4 * float(one.abs().max()))
    assert positions[1] < 0.7 * positions[0]


@pytest.mark.parametrize("rank", [0, 4])
def test_an_update_finds_what_one_without_it_does(rank: int) -> None:
    figures = []
    for shared in (False, True):
        chosen = changed(LearnerSettings(), {**SETTINGS, "lora.rank": rank, "compute.shared_prompts": shared})
        figures.append(update(make_state(MODEL, chosen), batch_with_a_prompt(), chosen).metrics)
    one, other = figures
    assert other["positions"] < one["positions"]
    assert other == pytest.approx({**one, "positions": other["positions"]}, rel=1e-3, abs=1e-5)


def test_what_predicts_a_sampled_token_is_not_taken_away() -> None:
    sequences = [
        TrainingSequence((1, 2, 3, 4, 9), (TurnSpan(0, 4, 5),)),
        TrainingSequence((1, 2, 3, 7), (TurnSpan(1, 3, 4),)),
    ]
    prompt, after = without_common_prompt(sequences)
    assert prompt == (1, 2)
    assert after == [
        TrainingSequence((3, 4, 9), (TurnSpan(0, 2, 3),)),
        TrainingSequence((3, 7), (TurnSpan(1, 1, 2),)),
    ]
    assert without_common_prompt([*sequences, TrainingSequence((5, 6, 7), (TurnSpan(2, 2, 3),))])[0] == ()


def test_a_turn_alone_shares_nothing() -> None:
    batch = batch_with_a_prompt()[:1]
    (part,) = micro_batches(merge(batch), batch, 256, "cpu", shared=True)
    assert part.prompt_P is None


def test_models_that_carry_another_state_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = PolicyModel(MODEL, "cpu")
    require_shareable(policy.model)
    monkeypatch.setattr("transformers.DynamicCache.batch_repeat_interleave", lambda cache, times: cache.crop(3))
    with pytest.raises(ConfigError, match=r"shared_prompts: Qwen3ForCausalLM"):
        require_shareable(policy.model)


@pytest.mark.parametrize("other", ["packed", "gradient_checkpointing"])
def test_what_excludes_it_is_refused(other: str) -> None:
    with pytest.raises(ValueError, match=f"shared_prompts and {other}"):
        ComputeSettings(**{"shared_prompts": True, other: True})  # type: ignore[arg-type]
