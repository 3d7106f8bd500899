"""The forward pass of Llama-shaped decoders in as few calls as torch allows.

The architecture is that of arXiv 2302.13971, with Qwen3's norms on queries and keys (arXiv 2505.09388). At small sizes
calls are the cost, not arithmetic: transformers' modules take two to three times as long for the same numbers. It is
used only where a check finds the numbers the same.

N packed tokens, E hidden size, H query heads, K key-value heads, D head dimension, T positions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from serving.engines.local.attention import Plan, SlotCache, attend

_LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


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
    """One version's weights, ready to compute with.

    Fused weights take no memory of their own: the modules' become views of them."""

    def __init__(self, model: Any, rotary: Rotary) -> None:
        base: Any = model.model
        self._embedding = base.embed_tokens.weight
        self._head = model.lm_head
        self._norm, self._epsilon = base.norm.weight, base.norm.variance_epsilon
        self._rotary = rotary
        self._layers = [_Layer(layer, index) for index, layer in enumerate(base.layers)]

    def __call__(self, tokens_N: Tensor, plan: Plan, cache: SlotCache, keep: Tensor | None) -> Tensor:
        """Logits [R, V] of the packed tokens that `keep` [R] names, or of all."""
        hidden_NE = F.embedding(tokens_N, self._embedding)
        positions_N = plan.positions_1N[0]
        cos_N1D, sin_N1D = self._rotary.cos_T1D[positions_N], self._rotary.sin_T1D[positions_N]
        for layer in self._layers:
            hidden_NE = layer(hidden_NE, cos_N1D, sin_N1D, plan, cache)
        kept_RE = hidden_NE if keep is None else hidden_NE[keep]
        logits_RV: Tensor = self._head(F.rms_norm(kept_RE, self._norm.shape, self._norm, self._epsilon))
        return logits_RV


class _Layer:
    def __init__(self, layer: Any, index: int) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._index = index
        self._size = attention.head_dim
        self._scaling = attention.scaling
        self._before, self._epsilon = layer.input_layernorm.weight, layer.input_layernorm.variance_epsilon
        self._after, self._after_epsilon = _weight(layer.post_attention_layernorm)
        self._qkv, self._qkv_bias = _fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self._heads = attention.q_proj.out_features // self._size
        self._rotated = self._heads + attention.k_proj.out_features // self._size  # heads of queries and keys
        self._out, self._out_bias = attention.o_proj.weight.t(), attention.o_proj.bias
        self._gate_up, self._gate_up_bias = _fuse(mlp.gate_proj, mlp.up_proj)
        self._down, self._down_bias = mlp.down_proj.weight.t(), mlp.down_proj.bias
        self._activation: Callable[[Tensor], Tensor] = mlp.act_fn
        self._qk_norm: Tensor | None = None
        if hasattr(attention, "q_norm"):
            per_head = [attention.q_norm.weight] * self._heads
            per_head += [attention.k_norm.weight] * (self._rotated - self._heads)
            self._qk_norm, self._qk_epsilon = torch.stack(per_head), attention.q_norm.variance_epsilon

    def __call__(self, hidden_NE: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, plan: Plan, cache: SlotCache) -> Tensor:
        size, rotated, epsilon = self._size, self._rotated, self._epsilon
        normed_NE = F.rms_norm(hidden_NE, self._before.shape, self._before, epsilon)
        qkv = F.linear(normed_NE, self._qkv, self._qkv_bias).view(hidden_NE.shape[0], -1, size)
        qk = qkv[:, :rotated]
        if self._qk_norm is not None:
            qk = F.rms_norm(qk, (size,), None, self._qk_epsilon) * self._qk_norm
        qk = torch.addcmul(qk * cos_N1D, qk.roll(size // 2, -1), sin_N1D)
        keys, values = cache.write(self._index, qk[:, self._heads :], qkv[:, rotated:], plan)
        mixed_NHD = attend(qk[:, : self._heads], keys, values, plan, self._scaling)
        hidden_NE = _add_linear(hidden_NE, mixed_NHD.flatten(1), self._out, self._out_bias)
        normed_NE = F.rms_norm(hidden_NE, self._after.shape, self._after, self._after_epsilon)
        gate, up = F.linear(normed_NE, self._gate_up, self._gate_up_bias).chunk(2, -1)
        return _add_linear(hidden_NE, self._activation(gate).mul_(up), self._down, self._down_bias)


def _weight(norm: Any) -> tuple[Tensor, float]:
    return norm.weight, norm.variance_epsilon


def _add_linear(residual: Tensor, x: Tensor, weight_t: Tensor, bias: Tensor | None) -> Tensor:
    added = torch.addmm(residual, x, weight_t)
    return added if bias is None else added.add_(bias)


def _fuse(*linears: Any) -> tuple[Tensor, Tensor | None]:
    weight = torch.cat([linear.weight.data for linear in linears])
    at = 0
    for linear in linears:
        linear.weight.data = weight[at : at + linear.out_features]
        at += linear.out_features
    biases = [linear.bias for linear in linears if linear.bias is not None]
    return weight, torch.cat([bias.data for bias in biases]) if biases else None
