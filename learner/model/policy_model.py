"""The policy as the learner sees it: a Hugging Face causal LM, float32, whose sampled tokens it scores.

Legend: B sequences, T positions, N sampled tokens, D hidden size, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

from core.errors import ConfigError, WeightsError
from core.model.files import LOCAL, check_model_files
from core.model.weights_digest import digest_of_shards
from learner.model import lora
from learner.model.output_head import OutputHead
from learner.model.ranks import like, whole
from learner.sequences.tensors import MicroBatch

T = TypeVar("T")
_TRIED = 8  # tokens
_AGREEMENT = 1e-4


def _given(directory: Path) -> Any:
    config = AutoConfig.from_pretrained(directory, **LOCAL)
    for part in {id(each): each for each in (config, config.get_text_config())}.values():
        for name, value in part.to_dict().items():
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    return AutoModelForCausalLM.from_pretrained(
        directory, config=config, dtype=torch.float32, use_safetensors=True, **LOCAL
    )


class PolicyModel:
    is_given = True
    """Whether its weights, adapters apart, are those of the directory it was made of."""

    def __init__(self, directory: Path, device: str, *, fused: bool = True) -> None:
        """Load the model. `fused`: use torch's own norms, which need one precision throughout.

        Raises ConfigError when the model's logits are not what its output head computes from its hidden states, or
        differ from one call to the next: importance ratios compare two policies, and dropout in either would spoil
        them."""
        self._directory = directory
        check_model_files(directory)
        self.model: Any = _given(directory).to(device)
        self.head = OutputHead(self.model)
        self._require_its_own_logits()
        if fused:
            fuse_norms(self.model)
        self.model.train()  # gradient checkpointing asks for it
        self._require_no_chance()
        self._root = _Root(self.model)

    @torch.no_grad()
    def _require_no_chance(self) -> None:
        """Switch dropout off.

        Raise ConfigError when two calls still differ, as when a dropout module was not recognised."""
        for module in self.model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
        some = min(_TRIED, self.model.config.get_text_config().vocab_size)
        ids_BT = torch.arange(some, device=self.model.device)[None]
        first, second = (self.model(input_ids=ids_BT, use_cache=False).logits for _ in range(2))
        if not torch.equal(first, second):
            kind = type(self.model).__name__
            raise ConfigError(f"{self._directory}: {kind} computes otherwise each time that it trains (dropout?)")

    @torch.no_grad()
    def _require_its_own_logits(self) -> None:
        some = min(_TRIED, self.model.config.get_text_config().vocab_size)
        ids_BT = torch.arange(some, device=self.model.device)[None]
        hidden_BTD = self.model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        own_BTV, found_BTV = self.model(input_ids=ids_BT, use_cache=False).logits, self.head.logits(hidden_BTD)
        if float((own_BTV - found_BTV).abs().max()) > _AGREEMENT * float(own_BTV.abs().max()):
            kind = type(self.model).__name__
            raise ConfigError(f"{self._directory}: {kind} changes its logits in a way that the learner does not know")

    def shard(self, mesh: DeviceMesh) -> None:
        """Keep a shard of each tensor in each process, and gather layer by layer."""
        layers = set(getattr(self.model, "_no_split_modules", None) or ())
        for module in self.model.modules():
            if type(module).__name__ in layers:
                fully_shard(module, mesh=mesh)
        fully_shard(self._root, mesh=mesh, reshard_after_forward=True)

    def inside(self, compute: Callable[[], T]) -> T:
        """Run a computation with the model's weights gathered, where they may be shards."""
        return self._root(compute)  # type: ignore[no-any-return]

    def evaluate(
        self, batch: MicroBatch, precision: AbstractContextManager[object] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (hidden_ND, logprobs_N, entropy_N); `precision` is that of the trunk."""

        def compute() -> tuple[Tensor, Tensor, Tensor]:
            with precision or nullcontext():
                hidden_ND = self.hidden_states(batch).float()
            return hidden_ND, *self.score(hidden_ND, batch)

        return self.inside(compute)

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def context_length(self) -> int:
        return int(self.model.config.get_text_config().max_position_embeddings)

    def hidden_states(self, batch: MicroBatch) -> Tensor:
        """Return the states [N, D] that predict the sampled tokens.

        Padding is to the right of all of them. Packed sequences are kept apart by their positions, as transformers does
        for causal models that are given no mask."""
        packed = {} if batch.positions_BT is None else {"position_ids": batch.positions_BT}
        hidden_BTD = self.model.base_model(input_ids=batch.ids_BT, use_cache=False, **packed).last_hidden_state
        return hidden_BTD[batch.rows_N, batch.places_N]  # type: ignore[no-any-return]

    def score(self, hidden_ND: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return (logprobs_N, entropy_N) under each turn's own temperature."""
        return self.head.score(hidden_ND, batch.targets_N, batch.temperature_N)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that train."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def flops_of_a_position(self) -> int:
        """Operations of a position.

        Each weight takes two forward, two for the gradient of what is before it, and two for its own gradient when it
        trains: 6 N when all do (arXiv:2001.08361, table 1)."""
        return sum(parameter.numel() * (6 if parameter.requires_grad else 4) for parameter in self.model.parameters())

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to publish, each once; tied ones under the name of the one they are tied to."""
        named = self._named()
        for name, delta in lora.deltas(self.model):
            named[name] = named[name] + delta
        return {name: whole(tensor).contiguous() for name, tensor in named.items()}

    def _named(self) -> dict[str, Tensor]:
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ()) if self._is_tied else set()
        return {name: tensor for name, tensor in lora.base_tensors(self.model).items() if name not in tied}

    @property
    def _is_tied(self) -> bool:
        return bool(getattr(self.model.config, "tie_word_embeddings", False))

    @torch.no_grad()
    def load(self, shards: Sequence[Path]) -> None:
        """Load published weights. Raises WeightsError naming the file or the tensors that do not fit."""
        state: dict[str, Tensor] = {}
        for shard in shards:
            try:
                state |= load_file(shard)
            except (SafetensorError, OSError) as error:
                raise WeightsError(f"{shard}: {error}") from error
        wanted = self._named()
        if state.keys() != wanted.keys():
            raise WeightsError(f"{shards[0].parent}: other tensors: {sorted(state.keys() ^ wanted.keys())[:4]}")
        for name, tensor in wanted.items():
            if state[name].shape != tensor.shape:
                raise WeightsError(f"{shards[0].parent}: {name} is {list(state[name].shape)}")
            tensor.copy_(like(state[name].float(), tensor))
        lora.forget(self.model)
        self.is_given = False

    @torch.no_grad()
    def load_given(self) -> None:
        """Load the weights that the model was made with."""
        given = _given(self._directory).state_dict()
        for name, tensor in self._named().items():
            tensor.copy_(like(given[name], tensor))
        lora.forget(self.model)
        self.is_given = True

    def adapters(self) -> dict[str, Any]:
        """Return LoRA's adapters for a checkpoint, and the weights they adapt unless these are the given model's."""
        base = {} if self.is_given else {name: whole(tensor) for name, tensor in self._named().items()}
        return {"adapters": {name: whole(tensor) for name, tensor in lora.adapters(self.model).items()}, "base": base}

    @torch.no_grad()
    def load_adapters(self, kept: dict[str, Any]) -> None:
        """Load adapters and the weights they adapt, bit for bit: published sums cannot be taken apart again."""
        if kept["base"]:
            self.is_given = False
            for name, tensor in self._named().items():
                tensor.copy_(like(kept["base"][name], tensor))
        elif not self.is_given:
            self.load_given()
        for name, tensor in lora.adapters(self.model).items():
            tensor.copy_(like(kept["adapters"][name], tensor))

    @cached_property
    def base_digest(self) -> str:
        """The digest of the given model's files, by which a version that is an adapter names its base."""
        return digest_of_shards(sorted(self._directory.glob("*.safetensors")))

    def adapter_tensors(self) -> dict[str, Tensor]:
        """Return A and B of all adapters as they are published: whole on the leader, float32.

        They are named `<module>.lora_A.weight` and `<module>.lora_B.weight` by the model's own modules, as peft and
        SGLang read them. They stand for the policy only while it `is_given`."""
        return {lora.published(name): whole(tensor).float() for name, tensor in lora.adapters(self.model).items()}

    @torch.no_grad()
    def load_adapter(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a published adapter upon the given model, bit for bit. Raises WeightsError naming what does not fit."""
        wanted = {lora.published(name): tensor for name, tensor in lora.adapters(self.model).items()}
        if tensors.keys() != wanted.keys():
            raise WeightsError(f"the adapter has other tensors: {sorted(tensors.keys() ^ wanted.keys())[:4]}")
        for name, tensor in wanted.items():
            if tensors[name].shape != tensor.shape:
                raise WeightsError(f"the adapter's {name} is {list(tensors[name].shape)}, not {list(tensor.shape)}")
        if not self.is_given:
            self.load_given()
        for name, tensor in wanted.items():
            tensor.copy_(like(tensors[name], tensor))

    @torch.no_grad()
    def load_merged(self, low_ranks: Mapping[str, tuple[Tensor, Tensor]], scale: float) -> None:
        """Load the given model with A and B, by the name of the weight that they change, added to it.

        Raises WeightsError naming what does not fit."""
        named = self._named()
        for name, (a_RI, b_OR) in low_ranks.items():
            if name not in named or named[name].shape != (b_OR.shape[0], a_RI.shape[1]):
                raise WeightsError(f"the adapter's matrices of {name} do not fit the model")
        self.load_given()
        self.is_given = False
        for name, (a_RI, b_OR) in low_ranks.items():
            delta_OI = scale * (b_OR.float() @ a_RI.float())
            named[name].copy_(named[name].float() + like(delta_OI, named[name]))


class _Root(nn.Module):
    """A module whose forward is any computation with the model, such as its head apart from its trunk.

    FSDP gathers weights for a module's forward only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


def fuse_norms(model: nn.Module) -> None:
    """Replace Hugging Face's RMSNorm modules by torch's fused one: the same function of the same parameters."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon"):
                fused = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                fused.weight = child.weight
                setattr(parent, name, fused.to(child.weight.device))
