"""Corrections, leave-one-out and KTO against TRL's own trainers on the same answers, rewards and models.

Only the source of the answers is replaced: they are given instead of sampled.

Legend: B answers, N sampled tokens."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_settings import changed
from datasets import Dataset
from logged_world import MODEL, make_reward, make_turn
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer, RLOOConfig, RLOOTrainer

from core.ids import GroupId
from core.settings import ObjectiveSettings
from learner.model.policy_model import PolicyModel
from learner.objective.advantages.leave_one_out import LeaveOneOut
from learner.objective.credit import TokenCredit
from learner.objective.kto import kto_loss, reference_of, turn_ratios
from learner.objective.losses import TokenInputs, token_losses
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch

LENGTHS, PROMPT, GROUP = (3, 7, 12, 5), 6, 2
ANSWERS = len(LENGTHS)
REWARDS = (1.0, -0.5, 0.25, 0.0)
TOLERANCE = 1e-5  # of what is compared, or of 1 where that is less: some ulps of logits and of their exponentials
Gradients = dict[str, torch.Tensor]


def said() -> tuple[list[list[int]], list[list[int]]]:
    """Return (prompts, answers) from a fixed seed."""
    generator = torch.Generator().manual_seed(11)
    prompts = torch.randint(8, 500, (ANSWERS // GROUP, PROMPT), generator=generator).repeat_interleave(GROUP, 0)
    return prompts.tolist(), [torch.randint(8, 500, (length,), generator=generator).tolist() for length in LENGTHS]


def logprobs_of(model: Any) -> list[list[float]]:
    """Return the log-probabilities of each answer's tokens."""
    found = []
    for prompt, answer in zip(*said(), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, PROMPT - 1 : -1]
        found.append(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0].tolist())
    return found


def other_model(by: float, seed: int) -> Any:
    """Return a model not far from the shipped one."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return model


def gradients_of(model: Any) -> Gradients:
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def assert_same(gradients: Gradients, wanted: Gradients) -> None:
    assert gradients.keys() == wanted.keys()
    assert max(float(each.abs().max()) for each in wanted.values()) > 1e-3
    for name, gradient in gradients.items():
        size = max(1.0, float(wanted[name].abs().max()))
        assert torch.allclose(gradient, wanted[name], atol=TOLERANCE * size, rtol=0), name


def part_of(behaviour: Sequence[Sequence[float]]) -> MicroBatch:
    prompts, answers = said()
    longest = max(LENGTHS)
    rows = [prompt + answer + [0] * (longest - len(answer)) for prompt, answer in zip(prompts, answers, strict=True)]
    rows_N = torch.repeat_interleave(torch.arange(ANSWERS), torch.tensor(LENGTHS))
    indices_N = torch.cat([torch.arange(length) for length in LENGTHS])
    return MicroBatch(
        ids_BT=torch.tensor(rows),
        positions_BT=None,
        rows_N=rows_N,
        places_N=PROMPT - 1 + indices_N,
        targets_N=torch.tensor([token for answer in answers for token in answer]),
        behaviour_N=torch.tensor([each for one in behaviour for each in one]),
        temperature_N=torch.ones(len(rows_N)),
        turns_N=rows_N,
        indices_N=indices_N,
        versions_N=torch.zeros_like(rows_N),
    )


def options(directory: Path) -> dict[str, Any]:
    return {
        "output_dir": str(directory),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "per_device_train_batch_size": ANSWERS,
        "gradient_accumulation_steps": 1,
    }


def scored_by_trl(trainer: Any, generated: tuple[Any, ...]) -> dict[str, torch.Tensor]:
    """Return the inputs of the trainer's loss for answers with the given rewards."""
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    trainer._generate = lambda prompts: generated
    return dict(trainer._generate_and_score_completions([{"prompt": "p"} for _ in range(ANSWERS)]))


def rewarded(completions: Sequence[Any], **_: Any) -> list[float]:
    return list(REWARDS)


MODES = [
    pytest.param({"correction.method": "tis", "correction.ratio_cap": 1.1}, "token_truncate", (None, 1.1), id="tis"),
    pytest.param(
        {"correction.method": "tis_sequence", "correction.ratio_cap": 1.2},
        "sequence_truncate",
        (None, 1.2),
        id="tis_sequence",
    ),
    pytest.param(
        {"correction.method": "icepop", "correction.icepop_band": (0.9, 1.15)}, "token_mask", (0.9, 1.15), id="icepop"
    ),
]


@pytest.mark.parametrize(("mine", "mode", "band"), MODES)
def test_the_same_correction(tmp_path: Path, mine: dict[str, Any], mode: str, band: tuple[float | None, float]) -> None:
    """Another policy sampled the answers. Gradients are compared, for TRL's loss has the ratio's own value in it."""
    prompts, answers = said()
    behaviour = logprobs_of(other_model(0.05, seed=3))
    chosen = GRPOConfig(
        **options(tmp_path),
        num_generations=GROUP,
        max_completion_length=max(LENGTHS),
        disable_dropout=True,
        loss_type="bnpo",
        beta=0.0,
        scale_rewards="none",
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=band[0],
        vllm_importance_sampling_clip_max=band[1],
    )
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewarded,
        args=chosen,
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.use_vllm = True  # an engine of its own sampled: nothing else asks for the correction
    batch = scored_by_trl(trainer, (prompts, answers, None, ["x"] * ANSWERS, behaviour, {}, None, None))
    trainer._compute_loss(model, batch).backward()

    policy, part = PolicyModel(MODEL, "cpu"), part_of(behaviour)
    logprobs_N, entropy_N = policy.score(policy.hidden_states(part), part)
    advantage_N = batch["advantages"].flatten()[part.turns_N]
    keep_N = torch.ones_like(part.turns_N, dtype=torch.bool)
    given = TokenInputs(logprobs_N, entropy_N, part.behaviour_N, logprobs_N.detach(), advantage_N, keep_N, part.turns_N)
    settings = changed(ObjectiveSettings(), {"kl.coefficient": 0.0, **mine})
    losses = token_losses(given, settings, len(part.turns_N) / ANSWERS)
    (losses.loss_N.sum() / len(part.turns_N)).backward()
    assert 0 < int(losses.truncated_N.sum()) < len(part.turns_N), "some, not all, are beyond the bound"
    assert_same(gradients_of(policy.model), gradients_of(model))


def test_leave_one_out_is_rloos(tmp_path: Path) -> None:
    prompts, answers = said()
    trainer = RLOOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=rewarded,
        args=RLOOConfig(
            **options(tmp_path),
            num_generations=GROUP,
            max_completion_length=max(LENGTHS),
            beta=0.0,
            normalize_advantages=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    batch = scored_by_trl(trainer, (prompts, answers, ["x"] * ANSWERS))
    turns = [make_turn(number, group_id=GroupId(f"g{number // GROUP}")) for number in range(ANSWERS)]
    scored = [ScoredTurn(turn, make_reward(turn, value)) for turn, value in zip(turns, REWARDS, strict=True)]
    rewards_B, turns_B = torch.tensor(REWARDS), torch.arange(ANSWERS)
    way = LeaveOneOut(decay=0.9)
    way.begin(scored, rewards_B)
    baseline_B, _ = way.tokens(torch.zeros(ANSWERS, 2), TokenCredit(turns_B, rewards_B))
    assert torch.allclose((rewards_B - baseline_B).float(), batch["advantages"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("labels", [(True, False, True, False), (True, True, True, True), (False,) * 4])
def test_the_same_kto(tmp_path: Path, labels: tuple[bool, ...]) -> None:
    """Both take the reference point from the answers themselves."""
    prompts, answers = said()
    beta = 0.3
    reference = other_model(0.05, seed=4)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    rows = [
        {"prompt_ids": prompt, "completion_ids": answer, "KL_completion_ids": answer, "label": label}
        for prompt, answer, label in zip(prompts, answers, labels, strict=True)
    ]
    shown = {"prompt": ["a", "b"], "completion": ["c", "d"], "label": [True, False]}
    trainer = KTOTrainer(
        model=model,
        ref_model=copy.deepcopy(reference),
        args=KTOConfig(**options(tmp_path), beta=beta, disable_dropout=True, loss_type="kto"),
        train_dataset=Dataset.from_dict(shown),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    model.train()
    expected = trainer._compute_loss(model, trainer.data_collator(rows), False)
    expected.backward()

    policy, part = PolicyModel(MODEL, "cpu"), part_of(logprobs_of(reference))
    logprobs_N, _ = policy.score(policy.hidden_states(part), part)
    gain_M = torch.tensor([1.0 if label else -1.0 for label in labels])
    everybody = torch.ones(ANSWERS, dtype=torch.bool)
    ratio_M = turn_ratios(logprobs_N, part.behaviour_N, part.turns_N, ANSWERS, beta)
    summed = kto_loss(ratio_M, everybody, gain_M, reference_of(ratio_M.detach()), beta)
    loss = summed * beta / ANSWERS
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=TOLERANCE, abs=TOLERANCE)
    assert_same(gradients_of(policy.model), gradients_of(model))
