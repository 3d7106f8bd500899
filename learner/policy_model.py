"""The policy as the learner sees it: a Hugging Face causal LM, float32, whose sampled tokens it scores.

Legend: B sequences, T positions, N sampled tokens, D hidden size, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from onward_kernels import token_logprobs_and_entropy
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from core.errors import WeightsError
from learner.tensors import MicroBatch


class PolicyModel:
    def __init__(self, directory: Path, device: str, *, fused: bool = True) -> None:
        """`fused`: torch's own norms, which want all in one precision."""
        self.model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device)
        if fused:
            fuse_norms(self.model)
        self.model.train()

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def context_length(self) -> int:
        return int(self.model.config.get_text_config().max_position_embeddings)

    def hidden_states(self, batch: MicroBatch) -> Tensor:
        """[N, D]: the states that predict the sampled tokens. Padding stands right of all of them; what is packed is
        kept apart by its positions, as transformers has it of causal models that are given no mask."""
        packed = {} if batch.positions_BT is None else {"position_ids": batch.positions_BT}
        hidden_BTD = self.model.base_model(input_ids=batch.ids_BT, use_cache=False, **packed).last_hidden_state
        return hidden_BTD[batch.rows_N, batch.places_N]  # type: ignore[no-any-return]

    def score(self, hidden_ND: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(logprobs_N, entropy_N) under each turn's own temperature."""
        head_VD = self.model.get_output_embeddings().weight
        return token_logprobs_and_entropy(hidden_ND, head_VD, batch.targets_N, batch.temperature_N)

    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def tensors(self) -> dict[str, Tensor]:
        """What is published: every tensor once; tied ones under the name of the one they are tied to."""
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ()) if self._is_tied else set()
        return {name: tensor.contiguous() for name, tensor in self.model.state_dict().items() if name not in tied}

    @property
    def _is_tied(self) -> bool:
        return bool(getattr(self.model.config, "tie_word_embeddings", False))

    def load(self, shards: Sequence[Path]) -> None:
        """Raises WeightsError naming the file or the tensors that do not fit."""
        state: dict[str, Tensor] = {}
        for shard in shards:
            try:
                state |= load_file(shard)
            except (SafetensorError, OSError) as error:
                raise WeightsError(f"{shard}: {error}") from error
        wanted = self.tensors()
        if state.keys() != wanted.keys():
            raise WeightsError(f"{shards[0].parent}: other tensors: {sorted(state.keys() ^ wanted.keys())[:4]}")
        with torch.no_grad():
            for name, tensor in wanted.items():
                if state[name].shape != tensor.shape:
                    raise WeightsError(f"{shards[0].parent}: {name} is {list(state[name].shape)}")
                self.model.state_dict()[name].copy_(state[name].float())


def fuse_norms(model: nn.Module) -> None:
    """Hugging Face's RMSNorm modules as torch's fused one: the same function of the same parameters."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon"):
                fused = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                fused.weight = child.weight
                setattr(parent, name, fused.to(child.weight.device))
