"""The policy as the learner sees it: a Hugging Face causal LM whose sampled tokens it scores.

Legend: B sequences, T positions, N sampled tokens, D hidden size, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from core.errors import ConfigError, WeightsError
from core.model.files import check_model_files, weight_files
from core.model.weights_digest import digest_of_shards, tensors_of
from core.settings import LoraSettings
from learner.model import lora
from learner.model.loading import can_fill, fill, load_whole, make_empty, read_rows, stored_precision
from learner.model.output_head import OutputHead
from learner.model.ranks import like, local, whole
from learner.model.stored import fuse_norms, keep_stored
from learner.sequences.hinted import Hinting, hinting_of
from learner.sequences.masks import MasksOfTurns, masks_of
from learner.sequences.shared_prompt import continuing
from learner.sequences.tensors import MicroBatch

T = TypeVar("T")
_TRIED = 8  # tokens
_AGREEMENT = 1e-4


class PolicyModel:
    is_given = True
    """Whether its weights, adapters apart, are those of the directory it was made of."""

    def __init__(
        self,
        directory: Path,
        device: str,
        *,
        precision: str = "float32",
        frozen: bool = False,
        adapters: tuple[LoraSettings, int] | None = None,
        weights: Sequence[Path] = (),
        mesh: DeviceMesh | None = None,
    ) -> None:
        """Load the model, or `weights` of one like it; with a mesh, a shard of each tensor in each process.

        Its weights are float32 and train, unless it is `frozen` or has `adapters` (and the seed of their first
        values): then they are stored as its files have them. `precision`: what autocast will let products be computed
        in. Raises ConfigError when the model's logits are not what its output head computes from its hidden states, or
        differ from one call to the next: importance ratios compare two policies, and dropout in either would spoil
        them."""
        self._directory, self.device = directory, torch.device(device)
        check_model_files(directory)
        self._is_stored, self.has_adapters = frozen or adapters is not None, adapters is not None
        files = list(weights) or weight_files(directory)
        self.model: Any = self._made_for(files, mesh)
        fuse_norms(self.model)
        if self._is_stored or precision != "float32":
            keep_stored(self.model)
        self._as_given = {name for name, each in self.model.named_parameters() if each.dtype != torch.float32}
        self.model.requires_grad_(not self._is_stored)
        self.head = OutputHead(self.model)
        if adapters is not None:
            lora.adapt(self.model, *adapters)
        self.model.train()  # gradient checkpointing asks for it
        self._root = _Root(self.model)
        if mesh is None:
            self.model.to(self.device)
        else:
            self._share(mesh, files)
        if weights:
            self.load(weights)
        self.inside(self._require_no_chance)
        self.inside(self._require_its_own_logits)

    def _precision_of(self, files: Sequence[Path]) -> torch.dtype:
        return stored_precision(files) if self._is_stored else torch.float32

    def _made_for(self, files: Sequence[Path], mesh: DeviceMesh | None) -> Any:
        """Return a model to load the files into: the given one, or one that has no memory yet."""
        precision = self._precision_of(files)
        if mesh is not None and can_fill(empty := make_empty(self._directory, precision), files):
            return empty
        return load_whole(self._directory, precision)

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
            raise ConfigError(f"{self._directory}: {kind} computes something else at each training step (dropout?)")

    @torch.no_grad()
    def _require_its_own_logits(self) -> None:
        some = min(_TRIED, self.model.config.get_text_config().vocab_size)
        ids_BT = torch.arange(some, device=self.model.device)[None]
        hidden_BTD = self.model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        own_BTV, found_BTV = self.model(input_ids=ids_BT, use_cache=False).logits, self.head.logits(hidden_BTD)
        if float((own_BTV - found_BTV).abs().max()) > _AGREEMENT * float(own_BTV.abs().max()):
            kind = type(self.model).__name__
            raise ConfigError(f"{self._directory}: {kind} changes its logits in a way that the learner does not know")

    def _share(self, mesh: DeviceMesh, files: Sequence[Path]) -> None:
        """Keep a shard of each tensor in each process, and gather layer by layer."""
        layers = set(getattr(self.model, "_no_split_modules", None) or ())
        for module in self.model.modules():
            if type(module).__name__ in layers:
                fully_shard(module, mesh=mesh)
        fully_shard(self._root, mesh=mesh, reshard_after_forward=True)
        fill(self.model, files)
        for buffer in self.model.buffers():
            buffer.data = buffer.data.to(self.device)

    def inside(self, compute: Callable[[], T]) -> T:
        """Run a computation with the model's weights gathered, where they may be shards."""
        return self._root(compute)  # type: ignore[no-any-return]

    def evaluate(
        self, batch: MicroBatch, precision: AbstractContextManager[object] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (hidden_ND, logprobs_N, entropy_N); `precision` is that of the trunk."""

        def compute() -> tuple[Tensor, Tensor, Tensor]:
            with precision or nullcontext():
                hidden_ND = self.hidden_states(batch)
            return hidden_ND.float(), *self.score(hidden_ND, batch)

        return self.inside(compute)

    @property
    def masks(self) -> MasksOfTurns:
        return masks_of(self._directory)

    @property
    def hinting(self) -> Hinting:
        return hinting_of(self._directory)

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
        where: dict[str, Any] = {"use_cache": False}
        if batch.positions_BT is not None:
            where["position_ids"] = batch.positions_BT
        if batch.prompt_P is not None:
            where = continuing(self.model, batch.prompt_P, len(batch.ids_BT))
        hidden_BTD = self.model.base_model(input_ids=batch.ids_BT, **where).last_hidden_state
        return hidden_BTD[batch.rows_N, batch.places_N]  # type: ignore[no-any-return]

    def score(self, hidden_ND: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return (logprobs_N, entropy_N) under each turn's own temperature and masks."""
        return self.head.score(hidden_ND, batch.targets_N, batch.temperature_N, batch.mask)

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
        named = self._named() | dict(lora.merged(self.model))
        return {name: whole(tensor.float()).contiguous() for name, tensor in named.items()}

    def _named(self) -> dict[str, Tensor]:
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ()) if self._is_tied else set()
        return {name: tensor for name, tensor in lora.base_tensors(self.model).items() if name not in tied}

    @property
    def _is_tied(self) -> bool:
        return bool(getattr(self.model.config, "tie_word_embeddings", False))

    @torch.no_grad()
    def load(self, shards: Sequence[Path]) -> None:
        """Load published weights. Raises WeightsError naming the file or the tensors that do not fit."""
        held, wanted = tensors_of(shards), self._named()
        if held.keys() != wanted.keys():
            raise WeightsError(f"{shards[0].parent}: other tensors: {sorted(held.keys() ^ wanted.keys())[:4]}")
        for name, tensor in wanted.items():
            if held[name].shape != tuple(tensor.shape):
                raise WeightsError(f"{shards[0].parent}: {name} is {list(held[name].shape)}")
        self._take(lambda name, tensor: read_rows(held[name], name, tensor))
        self.is_given = False

    @torch.no_grad()
    def load_given(self) -> None:
        """Load the weights that the model was made with."""
        files = weight_files(self._directory)
        held = tensors_of(files)
        if all(name in held for name in self._named()):
            self._take(lambda name, tensor: read_rows(held[name], name, tensor))
        else:
            given = load_whole(self._directory, self._precision_of(files)).state_dict()
            self._take(lambda name, tensor: local(like(given[name], tensor)))
        self.is_given = True

    def _take(self, read: Callable[[str, Tensor], Tensor]) -> None:
        """Take over other weights, adapters apart, of which `read` returns this process's rows."""
        for name, tensor in self._named().items():
            self._put(name, tensor, read(name, tensor))
        lora.forget(self.model)

    def _put(self, name: str, tensor: Tensor, rows: Tensor) -> None:
        """Put this process's rows in the place of a tensor, in their precision where it was stored as it was given."""
        rows = rows.to(self.device)
        if name not in self._as_given or rows.dtype == tensor.dtype:
            local(tensor).copy_(rows)
        elif isinstance(tensor, DTensor):
            raise WeightsError(f"{name} is {rows.dtype}: the base that several processes share is {tensor.dtype}")
        else:
            self.model.get_parameter(name).data = rows.clone()

    @cached_property
    def base_digest(self) -> str:
        """The digest of the given model's files, by which a version that is an adapter names its base."""
        return digest_of_shards(weight_files(self._directory))

    def adapter_tensors(self) -> dict[str, Tensor]:
        """Return copies of A and B of all adapters as they are published: whole on the leader, float32.

        They are named `<module>.lora_A.weight` and `<module>.lora_B.weight` by the model's own modules, as peft and
        SGLang read them. They stand for the policy only while it `is_given`."""
        return {name: whole(tensor).clone() for name, tensor in lora.adapters(self.model).items()}

    @torch.no_grad()
    def load_adapter(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a published adapter upon the given model, bit for bit. Raises WeightsError naming what does not fit."""
        self.check_adapter(tensors)
        if not self.is_given:
            self.load_given()
        for name, tensor in lora.adapters(self.model).items():
            tensor.copy_(like(tensors[name].to(self.device), tensor))

    def check_adapter(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise WeightsError, naming what does not fit, unless the adapter's tensors are such as this model has."""
        wanted = lora.adapters(self.model)
        if tensors.keys() != wanted.keys():
            raise WeightsError(f"the adapter has other tensors: {sorted(tensors.keys() ^ wanted.keys())[:4]}")
        for name, tensor in wanted.items():
            if tensors[name].shape != tensor.shape:
                raise WeightsError(f"the adapter's {name} is {list(tensors[name].shape)}, not {list(tensor.shape)}")

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
            tensor = self.model.get_parameter(name).data
            delta_OI = (scale * (b_OR.float() @ a_RI.float())).to(self.device)
            self._put(name, tensor, local(tensor).float() + local(like(delta_OI, tensor)))


class _Root(nn.Module):
    """A module whose forward is any computation with the model, such as its head apart from its trunk.

    FSDP gathers weights for a module's forward only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()
