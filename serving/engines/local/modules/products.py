"""Products of activations with a version's matrices, each in the way that is fastest where it is computed.

On a processor a decode step costs what reading the weights costs. Matrices that half precision holds exactly, as it
does what was trained in bfloat16, are therefore packed in it for FBGEMM, which multiplies and adds in float32: half the
bytes, and the same numbers. An adapter (LoRA, arXiv:2106.09685) is computed beside the matrix that it changes, so that
all versions upon one base share it.

N rows, I inputs, O outputs, R rank."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORTH_PACKING = 1 << 18  # elements: with smaller matrices the calls are the cost
MOST_SEATED = 1 << 14  # elements of an adapter's A and B of one product: beyond, its calls cost less than its copies
_MOST = 65504.0
_LOST = 2.0**-25  # what half precision may lose of a number below 2^-14: half a unit of its last place


class Product(Protocol):
    """x W^T + b."""

    def __call__(self, x_NI: Tensor) -> Tensor: ...

    def add(self, residual_NO: Tensor, x_NI: Tensor) -> Tensor:
        """Return the product and `residual_NO` together."""
        ...


@dataclass(frozen=True)
class Plain:
    weight_OI: Tensor
    bias_O: Tensor | None

    def __call__(self, x_NI: Tensor) -> Tensor:
        return F.linear(x_NI, self.weight_OI, self.bias_O)

    def add(self, residual_NO: Tensor, x_NI: Tensor) -> Tensor:
        added_NO = torch.addmm(residual_NO, x_NI, self.weight_OI.t())
        return added_NO if self.bias_O is None else added_NO.add_(self.bias_O)


@dataclass(frozen=True)
class Packed:
    """Weights in half precision, packed by FBGEMM.

    What a row gives does not depend on the rows beside it, but for rounding: on some processors what is left over as
    one or two rows is added up in another order than rows in larger groups."""

    packed: Any

    @classmethod
    def of(cls, weight_OI: Tensor, bias_O: Tensor | None) -> "Packed":
        return cls(torch.ops.quantized.linear_prepack_fp16(weight_OI, bias_O))

    def __call__(self, x_NI: Tensor) -> Tensor:
        product_NO: Tensor = torch.ops.quantized.linear_dynamic_fp16(x_NI, self.packed)
        return product_NO

    def add(self, residual_NO: Tensor, x_NI: Tensor) -> Tensor:
        return self(x_NI).add_(residual_NO)


@dataclass(frozen=True)
class Beside:
    """A product with a thin one beside it: x W^T + b + (x A^T) B^T."""

    base: Product
    a_RI: Tensor
    b_OR: Tensor
    blocks: "Blocks | None" = None  # where it is small

    def __call__(self, x_NI: Tensor) -> Tensor:
        return self.base(x_NI).addmm_(x_NI @ self.a_RI.t(), self.b_OR.t())

    def add(self, residual_NO: Tensor, x_NI: Tensor) -> Tensor:
        return self.base.add(residual_NO, x_NI).addmm_(x_NI @ self.a_RI.t(), self.b_OR.t())


@dataclass(frozen=True)
class Blocks:
    """A small adapter's matrices of one product, cut so that no block is multiplied by the zeros beside its own.

    G blocks of equally many outputs, g: `a_EI` [G * R, I] and `b_GRg`."""

    a_EI: Tensor
    b_GRg: Tensor

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, Tensor] | None], outputs: Sequence[int]) -> "Blocks | None":
        """Cut the A and B of modules that share a product; None where they are too large to lie in every slot."""
        changed = [part for part in parts if part is not None]
        if sum(a.numel() + b.numel() for a, b in changed) > MOST_SEATED:
            return None
        block, rank = math.gcd(*outputs), max(a.shape[0] for a, _ in changed)
        count = sum(outputs) // block
        a_GRI = changed[0][0].new_zeros(count, rank, changed[0][0].shape[1])
        b_GRg = changed[0][1].new_zeros(count, rank, block)
        at = 0
        for part, size in zip(parts, outputs, strict=True):
            for start in range(0, size, block):
                if part is not None:
                    a_GRI[at, : part[0].shape[0]] = part[0]
                    b_GRg[at, : part[0].shape[0]] = part[1][start : start + block].t()
                at += 1
        return cls(a_GRI.flatten(0, 1), b_GRg)


class Change(Protocol):
    """A [R, I] and B [O, R] of one weight."""

    @property
    def a(self) -> Tensor: ...

    @property
    def b(self) -> Tensor: ...


Changes = Mapping[str, Change]
"""An adapter's matrices, by the name of the weight that they change."""


def beside(base: Product, known: Sequence[Change | None], outputs: Sequence[int], scale: float) -> Product:
    """Return the product of modules that share it, with what an adapter changes of each; `outputs`: of each."""
    if not any(known):
        return base
    like = base.weight_OI if isinstance(base, Plain) else torch.empty(0)
    a_RI = torch.cat([change.a.float() for change in known if change]).to(like)
    b_OR: Tensor = torch.block_diag(  # type: ignore[no-untyped-call]
        *(
            torch.zeros(size, 0) if change is None else change.b.float() * scale
            for change, size in zip(known, outputs, strict=True)
        )
    )
    parts = [None if change is None else (change.a.to(like), (change.b.float() * scale).to(like)) for change in known]
    return Beside(base, a_RI, b_OR.to(like), Blocks.of(parts, outputs))


def packs(device: str, dtype: torch.dtype) -> bool:
    """Return whether matrices may be packed there."""
    return device == "cpu" and dtype == torch.float32 and "fbgemm" in torch.backends.quantized.supported_engines


def fits_half(weight: Tensor) -> bool:
    """Return whether half precision holds a matrix: of bfloat16 it holds whatever is not too large."""
    if weight.dtype in (torch.bfloat16, torch.float16):
        return bool(weight.abs().max() <= _MOST)
    return bool((weight.half().float() - weight).abs_().max() <= _LOST)


def product_of(*linears: Any, is_packed: bool) -> Product:
    """Return one product for modules of the same inputs, whose weights become views of it, or nothing if it is packed.

    Packing takes the weights as they were stored, so that there is never more of them in float32 than one product's."""
    weight_OI = torch.cat([linear.weight.data for linear in linears])
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    bias_O = torch.cat(biases) if biases else None
    if is_packed:
        bias_O = None if bias_O is None else bias_O.float()
        if weight_OI.numel() >= WORTH_PACKING and fits_half(weight_OI):
            for linear in linears:
                linear.weight = placeholder(linear.weight.shape)
            return Packed.of(weight_OI.float(), bias_O)
        weight_OI = weight_OI.float()
    at = 0
    for linear in linears:
        linear.weight = nn.Parameter(weight_OI[at : at + linear.out_features], requires_grad=False)
        at += linear.out_features
    return Plain(weight_OI, bias_O)


def placeholder(shape: torch.Size) -> nn.Parameter:
    """Return a parameter of a shape, in float32, that takes no memory: what it stands for is packed elsewhere."""
    return nn.Parameter(torch.zeros(1).expand(shape), requires_grad=False)
