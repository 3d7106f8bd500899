"""The probe: how a candidate differs from the live version.

It uses sequences that the anchor sampled once from a fixed seed, after prompts of a product's shape, and recent texts
of users. L sequences, P tokens of each, V vocabulary. It runs beside the engine's thread, with a cache of its own."""

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from statistics import median

import torch
from torch import Tensor

from core.ids import PolicyRef
from core.model.probes import probe_shape, spread
from serving.engines.local.attention import Row
from serving.engines.local.model import Decoder, slot_cache

_SEED = 0

Texts = Sequence[Sequence[int]]


class Probe:
    """Thread-safe."""

    def __init__(
        self, anchor: Decoder, context_length: int, prompts: Texts = (), recent: Callable[[], Texts] = tuple
    ) -> None:
        """Make the probe. `recent` is called at each measurement.

        Without `prompts`, sequences start at the beginning of a text."""
        config = anchor.model.config.get_text_config()
        first = next((t for t in (config.bos_token_id, config.eos_token_id) if isinstance(t, int)), 0)
        parameters = list(anchor.model.parameters())
        shape = probe_shape(sum(each.numel() for each in parameters), parameters[0].device.type)
        begun = spread(prompts or [(first,)], shape.texts)
        self._count = shape.texts
        self._tokens = min(shape.most, max(shape.least, shape.own + max(map(len, begun))), context_length)
        self._cache = slot_cache(anchor.model, self._count, self._tokens)
        self._recent = recent
        self._sequences_LP = self._draw(anchor, [prompt[-max(1, self._tokens - shape.own) :] for prompt in begun])
        self._lock = threading.Lock()
        self._measured: dict[PolicyRef, list[Tensor]] = {}  # of the two measured last

    def measure(self, candidate: tuple[PolicyRef, Decoder], live: tuple[PolicyRef, Decoder]) -> Mapping[str, float]:
        """Return the figures of the sanity gate.

        `finite`: 1 when all logits are; `kl_to_live`: mean over tokens of KL(candidate || live), nats, on the drawn
        sequences, or the median of the recent ones, whichever is more; `entropy`: the candidate's mean entropy per
        token on the drawn, nats. When not finite, the other two are NaN."""
        with self._lock:
            drawn = self._sequences_LP
            reference = self._measured.get(live[0]) or self._logprobs(live[1], drawn)  # what is live was a candidate
            own = reference if candidate[0] == live[0] else self._logprobs(candidate[1], drawn)
            self._measured = {live[0]: reference, candidate[0]: own}
            of_users = self._of_users(candidate[1], live[1])
        if not _are_finite(own) or not _are_finite([mine for mine, _ in of_users]):
            return {"finite": 0.0, "kl_to_live": float("nan"), "entropy": float("nan")}
        divergence = sum(map(_divergence, own, reference)) / len(own)
        if of_users:
            divergence = max(divergence, median(_divergence(mine, theirs) for mine, theirs in of_users))
        entropy = -sum((own_PV.exp() * own_PV).sum(-1).mean().item() for own_PV in own) / len(own)
        return {"finite": 1.0, "kl_to_live": divergence, "entropy": entropy}

    def _of_users(self, candidate: Decoder, live: Decoder) -> list[tuple[Tensor, Tensor]]:
        """Return the logits [P, V] of the candidate and of the live version, for each recent text.

        A text for which the live version's are not finite is no evidence against another version."""
        recent = [text[-self._tokens :] for text in islice(self._recent(), self._count) if len(text) > 1]
        pairs = zip(self._logprobs(candidate, recent), self._logprobs(live, recent), strict=True)
        return [(mine, theirs) for mine, theirs in pairs if _are_finite([theirs])]

    def _logprobs(self, model: Decoder, sequences: Texts) -> list[Tensor]:
        """[P, V] of each sequence, one after another, so that memory stays small."""
        return [
            model.forward(self._cache, [Row(slot, 0, len(sequence))], sequence, all_positions=True)
            .float()
            .log_softmax(-1)
            for slot, sequence in enumerate(sequences)
        ]

    @torch.inference_mode()
    def _draw(self, anchor: Decoder, begun: Texts) -> list[list[int]]:
        """Sample the anchor's continuations of the prompts."""
        generator = torch.Generator().manual_seed(_SEED)
        sequences = [list(prompt[:1]) for prompt in begun]
        for at in range(self._tokens - 1):
            rows = [Row(slot, at, at + 1) for slot in range(self._count)]
            logits_LV = anchor.forward(self._cache, rows, [sequence[-1] for sequence in sequences])
            drawn_L1 = torch.multinomial(logits_LV.float().softmax(-1).cpu(), 1, generator=generator)
            for sequence, prompt, token in zip(sequences, begun, drawn_L1[:, 0].tolist(), strict=True):
                sequence.append(prompt[at + 1] if at + 1 < len(prompt) else token)
        return sequences


def _are_finite(each_LPV: Sequence[Tensor]) -> bool:
    return all(bool(torch.isfinite(each_PV).all()) for each_PV in each_LPV)


def _divergence(own_PV: Tensor, live_PV: Tensor) -> float:
    """Mean over tokens."""
    return float((own_PV.exp() * (own_PV - live_PV)).sum(-1).mean())
