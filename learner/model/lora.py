"""Low-rank adapters (LoRA, arXiv:2106.09685).

Each chosen matrix W of the model stays as it is, and two thin ones beside it learn: W' = W + (alpha / rank) B A, with B
= 0 at first. A product and its adapter are one function, which keeps its input, W as it is stored, and the input's
products with A: nothing of the size of the output.

Legend: N positions, I inputs and O outputs of a matrix, R the rank."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D

from core.errors import ConfigError
from core.settings import LoraSettings
from learner.model.ranks import like
from learner.model.stored import StoredLinear, computed_in, product

_MARK = ".lora_"
_SIDES = ("lora_A", "lora_B")
Pair = tuple[Tensor, Tensor]


class Adapted(nn.Module):
    """A linear module with an adapter beside it. Its own parameters, `weight` and `bias`, keep their names."""

    def __init__(self, given: nn.Module, settings: LoraSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.weight: nn.Parameter = given.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = given.bias  # type: ignore[assignment]
        self._is_transposed = isinstance(given, Conv1D)
        self.scale = settings.alpha / settings.rank
        outputs, inputs = self._weight_OI.shape
        like = {"bias": False, "dtype": torch.float32, "device": "meta"}
        self.lora_A, self.lora_B = nn.Linear(inputs, settings.rank, **like), nn.Linear(settings.rank, outputs, **like)
        self.lora_A.weight = nn.Parameter(self.first_values(generator))
        self.lora_B.weight = nn.Parameter(torch.zeros(outputs, settings.rank))
        self.in_use: Pair | Literal["own", "none"] = "own"

    @property
    def _weight_OI(self) -> Tensor:
        return self.weight.T if self._is_transposed else self.weight

    def first_values(self, generator: torch.Generator) -> Tensor:
        """Return the next values that A may begin with, [R, I]: those of a linear module of torch, as peft has them."""
        rank, inputs = self.lora_A.weight.shape
        return torch.empty(rank, inputs).uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        if self.in_use == "none":
            return product(x, self._weight_OI, self.bias)
        a_RI, b_OR = (self.lora_A.weight, self.lora_B.weight) if self.in_use == "own" else self.in_use
        return _AdaptedProduct.apply(  # type: ignore[no-any-return]
            x, self._weight_OI, self.bias, a_RI, b_OR, self.scale, computed_in(x.device)
        )

    def merged(self) -> Tensor:
        """Return W' in float32, laid out as W is."""
        delta_OI = self.scale * (self.lora_B.weight @ self.lora_A.weight)
        return self.weight.float() + (delta_OI.T if self._is_transposed else delta_OI)


class _AdaptedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        a_RI: Tensor,
        b_OR: Tensor,
        scale: float,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.given, ctx.scale, ctx.dtype = x.dtype, scale, dtype
        x_NI = x.to(dtype).reshape(-1, x.shape[-1])
        low_NR = x_NI @ a_RI.to(dtype).T
        ctx.save_for_backward(x_NI, weight_OI, a_RI, b_OR, low_NR)
        y_NO = nn.functional.linear(x_NI, weight_OI.to(dtype), None if bias_O is None else bias_O.to(dtype))
        return y_NO.addmm_(low_NR, b_OR.to(dtype).T, alpha=scale).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None, None]:
        x_NI, weight_OI, a_RI, b_OR, low_NR = ctx.saved_tensors
        grad_NO = grad.reshape(-1, grad.shape[-1])
        grad_NR = ctx.scale * (grad_NO @ b_OR.to(ctx.dtype))
        grad_RI = (grad_NR.T @ x_NI).to(a_RI.dtype)
        grad_OR = ctx.scale * (grad_NO.T @ low_NR).to(b_OR.dtype)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_NI = (grad_NO @ weight_OI.to(ctx.dtype)).addmm_(grad_NR, a_RI.to(ctx.dtype))
            grad_x = grad_NI.view(*grad.shape[:-1], -1).to(ctx.given)
        return grad_x, None, None, grad_RI, grad_OR, None, None


def adapt(model: Any, settings: LoraSettings, seed: int) -> None:
    """Freeze the model and put adapters beside its linear modules, or those named in `learner.lora.targets`.

    The output matrix has one where it is named alone. Raises ConfigError when a name is no linear module's."""
    model.requires_grad_(False)
    generator, left = torch.Generator().manual_seed(seed), set(settings.targets)
    head = model.get_output_embeddings()
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, StoredLinear | Conv1D):
                continue
            names = {target for target in settings.targets if f".{path}.{name}".endswith(f".{target}")}
            if names if settings.targets else child is not head:
                setattr(parent, name, Adapted(child, settings, generator))
                left -= names
    if left:
        raise ConfigError(f"learner.lora.targets: {sorted(left)} are no linear modules of {type(model).__name__}")


@contextmanager
def instead(model: nn.Module, others: Mapping[str, Tensor] | None) -> Iterator[None]:
    """Compute for a while with other adapters in the place of the model's own; with `None`, with none."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, Adapted)}
    try:
        for name, module in found.items():
            a_RI, b_OR = ((others or {}).get(f"{name}.{side}.weight") for side in _SIDES)
            module.in_use = "none" if a_RI is None or b_OR is None else (a_RI, b_OR)
        yield
    finally:
        for module in found.values():
            module.in_use = "own"


def adapters(model: nn.Module) -> dict[str, Tensor]:
    """Return A and B of all adapters, by name: `<module>.lora_A.weight` and `<module>.lora_B.weight`."""
    return {name: tensor for name, tensor in model.state_dict().items() if _MARK in name}


def published(name: str) -> str:
    """Return an adapter's present name for one of a checkpoint that peft's modules named."""
    return name.replace(".default.", ".")


def base_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that the adapters stand beside, by the model's own names."""
    return {name: tensor for name, tensor in model.state_dict().items() if _MARK not in name}


def merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name of W, W') of each adapter."""
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            yield f"{name}.weight", module.merged()


def begin(model: nn.Module, seed: int) -> None:
    """Give all adapters the values that they begin with, as `adapt` does with this seed."""
    generator = torch.Generator().manual_seed(seed)
    for parent in list(model.modules()):
        for child in parent.children():
            if isinstance(child, Adapted):
                first_RI = child.first_values(generator).to(child.lora_A.weight.device)
                child.lora_A.weight.copy_(like(first_RI, child.lora_A.weight))
                child.lora_B.weight.zero_()


def forget(model: nn.Module) -> None:
    """Set B to 0, so that W' = W again; A stays as it is."""
    for name, tensor in adapters(model).items():
        if f"{_MARK}B." in name:
            tensor.zero_()
