"""The loss against TRL's, on the same tokens under the same model: value and gradient of every parameter.

TRL's names for what is compared: CISPO is the policy gradient under truncated importance sampling; `bnpo`, `grpo` and
`dr_grpo` are PPO with the three normalisers; `delta` is the dual clip.

Legend: B answers, T tokens of the longest, N sampled tokens, A answers as TRL pads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from changed_settings import changed
from datasets import Dataset
from logged_world import MODEL
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from core.settings import ObjectiveSettings
from learner.model.policy_model import PolicyModel
from learner.objective.losses import TokenInputs, token_losses
from learner.sequences.tensors import MicroBatch

LENGTHS, PROMPT = (3, 7, 12, 5), 6
LONGEST, ANSWERS = max(LENGTHS), len(LENGTHS)
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    """Return a batch in TRL's form: prompts on the left, answers padded on the right."""
    generator = torch.Generator().manual_seed(5)
    mask = (torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]).long()
    policy = PolicyModel(MODEL, "cpu")
    ids = torch.randint(8, 500, (ANSWERS, PROMPT + LONGEST), generator=generator)
    with torch.no_grad():
        logprobs = policy.model(ids).logits[:, PROMPT - 1 : -1].log_softmax(-1)
    said = logprobs.gather(2, ids[:, PROMPT:, None])[..., 0]
    noise = torch.randn(2, ANSWERS, LONGEST, generator=generator)
    return {
        "prompt_ids": ids[:, :PROMPT],
        "prompt_mask": torch.ones(ANSWERS, PROMPT, dtype=torch.long),
        "completion_ids": ids[:, PROMPT:] * mask,
        "completion_mask": mask,
        "advantages": torch.randn(ANSWERS, generator=generator),
        "old_per_token_logps": said + 0.4 * noise[0],
        "ref_per_token_logps": said + 0.3 * noise[1],
        "num_items_in_batch": mask.sum(),
    }


def theirs(directory: Path, batch: Mapping[str, torch.Tensor], **options: Any) -> tuple[float, dict[str, torch.Tensor]]:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    chosen = GRPOConfig(
        output_dir=str(directory),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        num_generations=2,
        per_device_train_batch_size=ANSWERS,
        gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        disable_dropout=True,
        use_bias_correction_kl=False,  # ours weighs the KL by nothing
        **options,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=chosen,
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    loss = trainer._compute_loss(model, dict(batch))
    loss.backward()
    return float(loss.detach()), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def ours(batch: Mapping[str, torch.Tensor], given: Mapping[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    policy = PolicyModel(MODEL, "cpu")
    rows_N, answers_N = batch["completion_mask"].nonzero(as_tuple=True)
    settings = {name: value for name, value in given.items() if name != "temperature"}
    temperature = given.get("temperature", 1.0)
    part = MicroBatch(
        ids_BT=torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
        positions_BT=None,
        rows_N=rows_N,
        places_N=PROMPT - 1 + answers_N,
        targets_N=batch["completion_ids"][rows_N, answers_N],
        behaviour_N=batch["old_per_token_logps"][rows_N, answers_N],
        temperature_N=torch.full((len(rows_N),), temperature),
        turns_N=rows_N,
        indices_N=answers_N,
        versions_N=torch.zeros_like(rows_N),
    )
    logprobs_N, entropy_N = policy.score(policy.hidden_states(part), part)
    given = TokenInputs(
        logprobs_N,
        entropy_N,
        part.behaviour_N,
        batch["ref_per_token_logps"][rows_N, answers_N],
        batch["advantages"][rows_N],
        torch.ones_like(rows_N, dtype=torch.bool),
        rows_N,
    )
    losses = token_losses(given, changed(ObjectiveSettings(), settings), len(rows_N) / ANSWERS)
    loss = losses.loss_N.sum() / len(rows_N)
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}


TIS = {"loss": "policy_gradient", "correction.method": "tis", "correction.ratio_cap": 1.5}
PPO = {"loss": "ppo", "correction.method": "none", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": None}
CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}


@pytest.mark.parametrize(
    ("mine", "trl"),
    [
        pytest.param(TIS, {"loss_type": "cispo", "epsilon_high": 1.5}, id="tis"),
        pytest.param(PPO, {"loss_type": "bnpo", **CLIP}, id="ppo by tokens"),
        pytest.param(
            {**PPO, "policy_normaliser": "sequence", "kl.normaliser": "sequence"},
            {"loss_type": "grpo", **CLIP},
            id="ppo by turns",
        ),
        pytest.param(
            {**PPO, "policy_normaliser": "constant", "kl.normaliser": "constant", "normaliser_tokens": LONGEST},
            {"loss_type": "dr_grpo", **CLIP},
            id="ppo by a constant",
        ),
        pytest.param({**PPO, "dual_clip": 1.4}, {"loss_type": "bnpo", **CLIP, "delta": 1.4}, id="dual clip"),
        pytest.param(
            {**PPO, "entropy_coefficient": 0.05}, {"loss_type": "bnpo", **CLIP, "entropy_coef": 0.05}, id="entropy"
        ),
        pytest.param({**PPO, "temperature": 0.7}, {"loss_type": "bnpo", **CLIP, "temperature": 0.7}, id="temperature"),
    ],
)
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_the_same_loss_and_gradient(
    tmp_path: Path, batch: Mapping[str, torch.Tensor], mine: dict[str, Any], trl: dict[str, Any], beta: float
) -> None:
    loss, gradients = ours(batch, {"kl.coefficient": beta, **mine})
    expected, wanted = theirs(tmp_path, batch, beta=beta, **trl)
    assert loss == pytest.approx(expected, abs=TOLERANCE)
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        size = max(1.0, float(wanted[name].abs().max()))
        assert torch.allclose(gradient, wanted[name], atol=TOLERANCE * size, rtol=0), name
