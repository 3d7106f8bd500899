"""TRL's loss and an optimizer step over the same answers, as the peer of the learner's update.

Legend: B answers, P tokens of the longest prompt, T of the longest answer.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from core.settings import LearnerSettings
from learner.sequences.scored import ScoredTurn


def _nothing(completions: list[Any], **_: Any) -> list[float | None]:
    return [0.0] * len(completions)


class TrlStep:
    """TRL's CISPO, which is the policy gradient under truncated importance sampling, with the KL to the anchor.

    Rewards are the advantages. Prompts are padded on the left, answers on the right; each turn stands alone."""

    def __init__(self, model: Path, settings: LearnerSettings) -> None:
        self.policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._settings = settings
        with tempfile.TemporaryDirectory() as directory:
            self._trainer = GRPOTrainer(
                model=self.policy,
                reward_funcs=_nothing,
                args=_config(directory, settings),
                train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
                processing_class=AutoTokenizer.from_pretrained(model),
            )
        self._trainer.current_gradient_accumulation_steps = 1
        self._optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=settings.optimizer.learning_rate,
            betas=(settings.optimizer.beta1, settings.optimizer.beta2),
            weight_decay=0.0,
            fused=True,
        )
        self.policy.train()

    def batches(self, turns: Sequence[ScoredTurn], size: int) -> list[dict[str, Tensor]]:
        """Return batches of `size` turns of like length.

        TRL's own sampler does not do this, and it spares as much padding as the learner spares itself."""
        total = torch.tensor(sum(len(scored.turn.token_ids) for scored in turns))
        ordered = sorted(turns, key=lambda scored: len(scored.turn.prompt_token_ids) + len(scored.turn.token_ids))
        return [self._batch(ordered[start : start + size], total) for start in range(0, len(turns), size)]

    def _batch(self, turns: Sequence[ScoredTurn], total: Tensor) -> dict[str, Tensor]:
        prompts = [scored.turn.prompt_token_ids for scored in turns]
        answers = [scored.turn.token_ids for scored in turns]
        longest, most = max(map(len, prompts)), max(map(len, answers))
        behaviour = [scored.turn.logprobs for scored in turns]
        return {
            "prompt_ids": torch.tensor([(0,) * (longest - len(p)) + p for p in prompts]),
            "prompt_mask": torch.tensor([(0,) * (longest - len(p)) + (1,) * len(p) for p in prompts]),
            "completion_ids": torch.tensor([a + (0,) * (most - len(a)) for a in answers]),
            "completion_mask": torch.tensor([(1,) * len(a) + (0,) * (most - len(a)) for a in answers]),
            "advantages": torch.tensor([scored.reward.value for scored in turns]),
            "old_per_token_logps": torch.tensor([b + (0.0,) * (most - len(b)) for b in behaviour]),
            "num_items_in_batch": total,
        }

    def step(self, batches: Sequence[dict[str, Tensor]]) -> tuple[float, float]:
        """Take a step and return (loss per token, norm of the gradient)."""
        total = 0.0
        for batch in batches:
            loss = self._trainer._compute_loss(self.policy, batch | {"ref_per_token_logps": self._anchor(batch)})
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self._settings.optimizer.gradient_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total, float(norm)

    @torch.no_grad()
    def _anchor(self, batch: dict[str, Tensor]) -> Tensor:
        ids_BT = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask_BT = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        keep = batch["completion_ids"].size(1)
        found: Tensor = self._trainer._get_per_token_logps_and_entropies(
            self._trainer.ref_model, ids_BT, mask_BT, keep
        )[0]
        return found


def _config(directory: str, settings: LearnerSettings) -> GRPOConfig:
    return GRPOConfig(
        output_dir=directory,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        num_generations=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        disable_dropout=True,
        loss_type="cispo",
        epsilon_high=settings.objective.correction.ratio_cap,
        beta=settings.objective.kl.coefficient,
        use_bias_correction_kl=False,
    )
