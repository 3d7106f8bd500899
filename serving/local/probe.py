"""How a candidate differs from what serves, on sequences that the anchor sampled once, from a fixed seed.

L sequences, P tokens of each, V vocabulary. Runs beside the engine's thread, with a cache of its own.
"""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from core.ids import Version
from serving.local.attention import Row
from serving.local.model import Decoder, slot_cache

_SEQUENCES = 16
_TOKENS = 64
_SEED = 0


class Probe:
    """Thread-safe."""

    def __init__(self, anchor: Decoder, context_length: int) -> None:
        self._tokens = min(_TOKENS, context_length)
        self._cache = slot_cache(anchor.model, _SEQUENCES, self._tokens)
        self._sequences_LP = self._draw(anchor)
        self._lock = threading.Lock()
        self._measured: dict[Version, list[Tensor]] = {}  # of the two measured last

    def measure(self, candidate: tuple[Version, Decoder], live: tuple[Version, Decoder]) -> Mapping[str, float]:
        """`finite`: 1 when all logits are; `kl_to_live`: mean over tokens of KL(candidate || live), nats; `entropy`:
        the candidate's mean entropy per token, nats. Where not finite, the other two are NaN."""
        with self._lock:
            reference = self._measured.get(live[0]) or self._logprobs(live[1])  # what is live was a candidate
            own = self._logprobs(candidate[1])
            self._measured = {live[0]: reference, candidate[0]: own}
        if not all(torch.isfinite(each_PV).all() for each_PV in own):
            return {"finite": 0.0, "kl_to_live": float("nan"), "entropy": float("nan")}
        divergence = entropy = 0.0
        for own_PV, live_PV in zip(own, reference, strict=True):
            weights_PV = own_PV.exp()
            divergence += (weights_PV * (own_PV - live_PV)).sum(-1).mean().item() / len(own)
            entropy -= (weights_PV * own_PV).sum(-1).mean().item() / len(own)
        return {"finite": 1.0, "kl_to_live": divergence, "entropy": entropy}

    def _logprobs(self, model: Decoder) -> list[Tensor]:
        """[P, V] of each sequence, one after another, so that memory stays small."""
        rows = [Row(slot, 0, self._tokens) for slot in range(_SEQUENCES)]
        return [
            model.forward(self._cache, [row], sequence, all_positions=True).float().log_softmax(-1)
            for row, sequence in zip(rows, self._sequences_LP, strict=True)
        ]

    @torch.inference_mode()
    def _draw(self, anchor: Decoder) -> list[list[int]]:
        """From where texts begin, as the anchor would go on."""
        generator = torch.Generator().manual_seed(_SEED)
        config = anchor.model.config.get_text_config()
        first = next((t for t in (config.bos_token_id, config.eos_token_id) if isinstance(t, int)), 0)
        sequences = [[first] for _ in range(_SEQUENCES)]
        for at in range(self._tokens - 1):
            rows = [Row(slot, at, at + 1) for slot in range(_SEQUENCES)]
            logits_LV = anchor.forward(self._cache, rows, [sequence[-1] for sequence in sequences])
            drawn_L1 = torch.multinomial(logits_LV.float().softmax(-1).cpu(), 1, generator=generator)
            for sequence, token in zip(sequences, drawn_L1[:, 0].tolist(), strict=True):
                sequence.append(token)
        return sequences
