"""The forward pass of Llama-shaped decoders in as few calls as torch allows.

The architecture is that of arXiv 2302.13971, with Qwen3's norms on queries and keys (arXiv 2505.09388). At small sizes
calls are the cost, not arithmetic: transformers' modules take two to three times as long for the same numbers. At
larger ones reading the weights is, and these may be packed. It is used only where a check finds the numbers the same.

N packed tokens, E hidden size, H query heads, K key-value heads, D head dimension, T positions."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from serving.engines.local.attention import AttentionPlan, Row, SlotCache, attend
from serving.engines.local.modules.products import Changes, Plain, Product, beside, fits_half, placeholder, product_of
from serving.engines.local.native.step import NONE, LayerWeights, NativeStep

Progress = Callable[[float], None]
"""Told what share of the weights is ready to compute with."""
_LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_SILU = {"SiLU", "SiLUActivation"}  # torch's and transformers' names of it
_SHARED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The modules of a layer that share a product, and with it a call."""


@dataclass(frozen=True)
class Rotary:
    """The cosine and sine of every position, [T, 1, D] (RoFormer, arXiv 2104.09864).

    The sine's first half is negated, so that rotating a vector is x * cos + roll(x) * sin. Shared by all versions."""

    cos_T1D: Tensor
    sin_T1D: Tensor

    @classmethod
    @torch.inference_mode()
    def of(cls, rotary: Any, like: Tensor, positions: int) -> "Rotary":
        cos_1TD, sin_1TD = rotary(like, torch.arange(positions, device=like.device)[None])
        half = sin_1TD.shape[-1] // 2
        sin_1TD = torch.cat((-sin_1TD[..., :half], sin_1TD[..., half:]), dim=-1)
        return cls(cos_1TD[0][:, None], sin_1TD[0][:, None])

    def is_same(self, other: "Rotary | None") -> bool:
        """Return whether every position is rotated alike, to the bit."""
        return (
            other is not None and torch.equal(self.cos_T1D, other.cos_T1D) and torch.equal(self.sin_T1D, other.sin_T1D)
        )


def is_lean(model: nn.Module) -> bool:
    """Return whether the model has the parts that `LlamaForward` computes, though maybe assembled differently."""
    base = getattr(model, "model", None)
    if {name for name, _ in model.named_children()} != {"model", "lm_head"} or not isinstance(base, nn.Module):
        return False
    if {name for name, _ in base.named_children()} != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        return False
    return all(_is_lean_layer(layer) for layer in base.layers)  # type: ignore[union-attr]


def _is_lean_layer(layer: nn.Module) -> bool:
    parts = dict(layer.named_children())
    if set(parts) != _LAYER or {name for name, _ in parts["mlp"].named_children()} != _MLP:
        return False
    attention = dict(parts["self_attn"].named_children())
    norms = [parts["input_layernorm"], parts["post_attention_layernorm"]]
    if set(attention) == _ATTENTION | {"q_norm", "k_norm"}:
        norms += [attention["q_norm"], attention["k_norm"]]
    elif set(attention) != _ATTENTION:
        return False
    return all(_epsilon(norm) is not None for norm in norms)


def _epsilon(norm: nn.Module) -> float | None:
    return getattr(norm, "variance_epsilon", None)


class LlamaForward:
    """One version's weights, ready to compute with."""

    def __init__(self, model: Any, rotary: Rotary, *, is_packed: bool, progress: Progress | None = None) -> None:
        """Take the model's weights: its modules keep views of them, or placeholders for those that are packed.

        Where `is_packed`, the weights may be as they were stored, of any dtype; what is not packed becomes float32."""
        base: Any = model.model
        if is_packed:
            _in_float(base)
        self._norm, self._epsilon = base.norm.weight, base.norm.variance_epsilon
        self._embedding: Tensor = base.embed_tokens.weight
        self._head: Callable[[Tensor], Tensor] = model.lm_head
        if is_packed:
            self._embedding, self._head = _pack_ends(base.embed_tokens, model.lm_head)
        self._rotary = rotary
        self._layers: list[_Layer] = []
        for index, layer in enumerate(base.layers):
            self._layers.append(_Layer(layer, index, is_packed))
            if progress is not None:
                progress((index + 1) / len(base.layers))
        self._native = None if is_packed else self._in_one_call(model.lm_head)

    def _in_one_call(self, head: Any) -> NativeStep | None:
        layers = [layer.native for layer in self._layers]
        if not NativeStep.fits(self._norm) or not all(layers) or self._embedding.dtype != torch.float32:
            return None
        ends = [self._embedding, self._norm, head.weight, NONE if head.bias is None else head.bias]
        shared = [*ends, self._rotary.cos_T1D, self._rotary.sin_T1D]
        return NativeStep(shared, self._epsilon, [layer for layer in layers if layer])

    def takes(self, changes: Changes) -> bool:
        """Return whether an adapter changes only what it can be computed beside."""
        return changes.keys() <= {name for layer in self._layers for names in layer.names.values() for name in names}

    def adapted(self, changes: Changes, scale: float) -> "LlamaForward":
        """Return another version: these weights, shared, with an adapter beside them."""
        other = copy.copy(self)
        other._layers = [layer.adapted(changes, scale) for layer in self._layers]
        other._native = None
        return other

    def step(
        self, rows: Sequence[Row], tokens: Sequence[int], cache: SlotCache, *, all_positions: bool
    ) -> Tensor | None:
        """Return what a call returns for these rows, computed in one call of torch; None where that cannot be."""
        if self._native is None:
            return None
        return self._native(rows, tokens, cache, all_positions=all_positions)

    def __call__(self, tokens_N: Tensor, plan: AttentionPlan, cache: SlotCache, keep: Tensor | None) -> Tensor:
        """Logits [R, V] of the packed tokens that `keep` [R] names, or of all."""
        hidden_NE = F.embedding(tokens_N, self._embedding).to(self._norm.dtype)
        positions_N = plan.positions_1N[0]
        cos_N1D, sin_N1D = self._rotary.cos_T1D[positions_N], self._rotary.sin_T1D[positions_N]
        for layer in self._layers:
            hidden_NE = layer(hidden_NE, cos_N1D, sin_N1D, plan, cache)
        kept_RE = hidden_NE if keep is None else hidden_NE[keep]
        return self._head(F.rms_norm(kept_RE, self._norm.shape, self._norm, self._epsilon))


class _Layer:
    def __init__(self, layer: Any, index: int, is_packed: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._index = index
        self._size = attention.head_dim
        self._scaling = attention.scaling
        self._before, self._epsilon = layer.input_layernorm.weight, layer.input_layernorm.variance_epsilon
        self._after, self._after_epsilon = _weight(layer.post_attention_layernorm)
        self._heads = attention.q_proj.out_features // self._size
        self._rotated = self._heads + attention.k_proj.out_features // self._size  # heads of queries and keys
        shared = {group: [layer.get_submodule(name) for name in names] for group, names in _SHARED.items()}
        self.names = {
            group: [f"model.layers.{index}.{name}.weight" for name in names] for group, names in _SHARED.items()
        }
        self._outputs = {group: [module.out_features for module in modules] for group, modules in shared.items()}
        self._products = {group: product_of(*modules, is_packed=is_packed) for group, modules in shared.items()}
        self._activation: Callable[[Tensor], Tensor] = mlp.act_fn
        self._qk_norm: Tensor | None = None
        if hasattr(attention, "q_norm"):
            per_head = [attention.q_norm.weight] * self._heads
            per_head += [attention.k_norm.weight] * (self._rotated - self._heads)
            self._qk_norm, self._qk_epsilon = torch.stack(per_head), attention.q_norm.variance_epsilon

    @property
    def native(self) -> LayerWeights | None:
        """Return what it is computed with, where one call of torch can compute it."""
        plain = [self._products[group] for group in _SHARED]
        if not all(isinstance(product, Plain) for product in plain) or type(self._activation).__name__ not in _SILU:
            return None
        qkv, out, gate_up, down = ((each.weight_OI, NONE if each.bias_O is None else each.bias_O) for each in plain)  # type: ignore[attr-defined]
        norm, epsilon = (NONE, 0.0) if self._qk_norm is None else (self._qk_norm, self._qk_epsilon)
        epsilons = (self._epsilon, self._after_epsilon, epsilon)
        return LayerWeights(self._before, qkv, norm, out, self._after, gate_up, down, epsilons, self._scaling)

    def adapted(self, changes: Changes, scale: float) -> "_Layer":
        other = copy.copy(self)
        other._products = {
            group: beside(product, [changes.get(name) for name in self.names[group]], self._outputs[group], scale)
            for group, product in self._products.items()
        }
        return other

    def __call__(
        self, hidden_NE: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, plan: AttentionPlan, cache: SlotCache
    ) -> Tensor:
        size, rotated, products = self._size, self._rotated, self._products
        normed_NE = F.rms_norm(hidden_NE, self._before.shape, self._before, self._epsilon)
        qkv = products["qkv"](normed_NE).view(hidden_NE.shape[0], -1, size)
        qk = qkv[:, :rotated]
        if self._qk_norm is not None:
            qk = F.rms_norm(qk, (size,), None, self._qk_epsilon) * self._qk_norm
        qk = torch.addcmul(qk * cos_N1D, qk.roll(size // 2, -1), sin_N1D)
        keys, values = cache.write(self._index, qk[:, self._heads :], qkv[:, rotated:], plan)
        mixed_NHD = attend(qk[:, : self._heads], keys, values, plan, self._scaling)
        hidden_NE = products["out"].add(hidden_NE, mixed_NHD.flatten(1))
        normed_NE = F.rms_norm(hidden_NE, self._after.shape, self._after, self._after_epsilon)
        gate, up = products["gate_up"](normed_NE).chunk(2, -1)
        return products["down"].add(hidden_NE, self._activation(gate).mul_(up))


def _weight(norm: Any) -> tuple[Tensor, float]:
    return norm.weight, norm.variance_epsilon


def _float(stored: Any) -> Tensor:
    copied: Tensor = stored.data.to(torch.float32, copy=True)  # never a view of a file that may change
    return copied


def _in_float(base: nn.Module) -> None:
    """Make the norms' weights float32."""
    for module in base.modules():
        if _epsilon(module) is not None:
            module.weight = nn.Parameter(_float(module.weight), requires_grad=False)


def _pack_ends(embedding: Any, head: Any) -> tuple[Tensor, Product]:
    """Return the embedding, in half precision where that holds it, and the head's product; they may be one tensor."""
    is_tied, stored_VE = head.weight is embedding.weight, embedding.weight.data
    product = product_of(head, is_packed=True)
    if fits_half(stored_VE):
        table_VE = stored_VE.to(torch.float16, copy=True)
        embedding.weight = placeholder(stored_VE.shape)
    else:
        table_VE = head.weight.data if is_tied else _float(embedding.weight)
    if is_tied:
        embedding.weight = head.weight
    return table_VE, product
