"""A step as one would write it by hand for a GPU, with transformers, and peft for adapters.

Legend: N sampled tokens, V vocabulary."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from core.model.files import LOCAL
from core.settings import LearnerSettings
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import MicroBatch


class RawStep:
    """The policy gradient with truncated ratios and k3 to the given model, in bfloat16."""

    def __init__(
        self,
        model: Path,
        settings: LearnerSettings,
        first: Mapping[str, Tensor],
        parts: Sequence[MicroBatch],
        batch: Sequence[ScoredTurn],
    ) -> None:
        """Take two steps; adapters begin with the values `first`."""
        self._settings, self._parts = settings, parts
        self._rewards_M = torch.tensor([each.reward.value for each in batch], device="cuda")
        self._anchor: Any = None
        if settings.lora.rank:
            self.model: Any = _with_adapters(_loaded(model, torch.bfloat16), settings, first)
        else:
            self.model = _loaded(model, torch.float32)
            self._anchor = _loaded(model, torch.bfloat16).requires_grad_(False)
        if settings.compute.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.train()
        self._trained = [each for each in self.model.parameters() if each.requires_grad]
        chosen = settings.optimizer
        self._optimizer = torch.optim.AdamW(
            self._trained, lr=chosen.learning_rate, betas=(chosen.beta1, chosen.beta2), weight_decay=0.0, fused=True
        )
        self.step()
        self.after_two = self.step()

    def step(self) -> tuple[float, float]:
        """Take a step and return (loss per token, norm of the gradient)."""
        with _as_fast_as_it_goes():
            num_tokens, total = sum(len(part.targets_N) for part in self._parts), torch.zeros((), device="cuda")
            for part in self._parts:
                loss_N = self._losses(part)
                (loss_N.sum() / num_tokens).backward()
                total += loss_N.detach().sum()
            norm = torch.nn.utils.clip_grad_norm_(self._trained, self._settings.optimizer.gradient_clip)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            return float(total) / num_tokens, float(norm)

    def _losses(self, part: MicroBatch) -> Tensor:
        logprobs_N = self._logprobs(self.model, part)
        with torch.no_grad():
            if self._anchor is None:
                with self.model.disable_adapter():
                    anchor_N = self._logprobs(self.model, part)
            else:
                anchor_N = self._logprobs(self._anchor, part)
        objective = self._settings.objective
        ratio_N = (logprobs_N.detach() - part.behaviour_N).exp().clamp(max=objective.correction.ratio_cap)
        gap_N = anchor_N - logprobs_N
        held_N = objective.kl.coefficient * (gap_N.exp() - 1 - gap_N)
        return -ratio_N * self._rewards_M[part.turns_N] * logprobs_N + held_N

    def _logprobs(self, model: Any, part: MicroBatch) -> Tensor:
        stock: Any = model.get_base_model() if isinstance(model, peft.PeftModel) else model
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden_BTD = stock.model(input_ids=part.ids_BT, use_cache=False).last_hidden_state
            logits_NV = stock.lm_head(hidden_BTD[part.rows_N, part.places_N])
        logp_NV = (logits_NV.float() / part.temperature_N[:, None]).log_softmax(-1)
        found_N: Tensor = logp_NV.gather(1, part.targets_N[:, None])[:, 0]
        return found_N


def _loaded(model: Path, dtype: torch.dtype) -> Any:
    made: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, **LOCAL)
    return made.to("cuda")


def _with_adapters(given: Any, settings: LearnerSettings, first: Mapping[str, Tensor]) -> Any:
    config = peft.LoraConfig(r=settings.lora.rank, lora_alpha=int(settings.lora.alpha), target_modules="all-linear")
    model: Any = peft.get_peft_model(given, config)
    values = {f"base_model.model.{name}": each for name, each in first.items()}
    loaded: Any = peft.set_peft_model_state_dict(model, values)
    assert not loaded.unexpected_keys
    return model


@contextmanager
def _as_fast_as_it_goes() -> Iterator[None]:
    """Let results differ from one time to the next, as a learner that need not repeat them would."""
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True)
