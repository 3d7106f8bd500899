"""Weights that are stored in one precision and computed in another.

A matrix is widened for its product, and widened again for the product's gradient: what is kept in between is the stored
one, so that no second copy of the model comes to be. What is computed in is float32, or what autocast says.

Legend: N positions, I inputs and O outputs of a matrix."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def computed_in(device: torch.device) -> torch.dtype:
    """Return what is computed in at present."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32


def product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x W^T + b."""
    return _Product.apply(x, weight_OI, bias_O, computed_in(x.device))  # type: ignore[no-any-return]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
        given = x.dtype
        x = x.to(dtype)
        ctx.given, ctx.dtype, ctx.bias = given, dtype, None if bias_O is None else bias_O.dtype
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight_OI)
        return nn.functional.linear(x, weight_OI.to(dtype), None if bias_O is None else bias_O.to(dtype))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight_OI = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        grad_NO = grad.reshape(-1, grad.shape[-1])
        grad_x = (grad @ weight_OI.to(ctx.dtype)).to(ctx.given) if of_x else None
        grad_OI = (grad_NO.T @ x.reshape(-1, x.shape[-1])).to(weight_OI.dtype) if of_weight else None
        grad_O = grad_NO.sum(0).to(ctx.bias) if of_bias else None
        return grad_x, grad_OI, grad_O, None


class StoredLinear(nn.Module):
    """A linear module, of the parameters of another one."""

    def __init__(self, given: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = given.weight, given.bias

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


class StoredEmbedding(nn.Module):
    """An embedding, of the parameter of another one."""

    def __init__(self, given: nn.Embedding) -> None:
        super().__init__()
        self.weight, self._padding = given.weight, given.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        found = nn.functional.embedding(ids, self.weight, self._padding)
        return found.to(computed_in(ids.device))


class Norm(nn.RMSNorm):
    """torch's fused norm, in the precision of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype == x.dtype:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def keep_stored(model: nn.Module) -> None:
    """Let the model's linear modules and embeddings compute on their weights as these are stored.

    The parameters of other kinds of module, which are small where a model has them, are widened to float32."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, StoredLinear(child))
            elif type(child) is nn.Embedding:
                setattr(parent, name, StoredEmbedding(child))
    for module in model.modules():
        if not isinstance(module, StoredLinear | StoredEmbedding):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.float()


def fuse_norms(model: nn.Module) -> None:
    """Replace Hugging Face's RMSNorm modules by torch's fused one: the same function of the same parameters."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon"):
                fused = Norm(child.weight.shape, eps=child.variance_epsilon, device="meta")
                fused.weight = child.weight
                setattr(parent, name, fused)
