"""The probe: how a candidate differs from the live version.

The publisher recorded a version's results on texts that the anchor continued (core.model.probes). The engine computes
some of them itself, and a version with other results than the recorded ones does not serve; the gate's figures then
come from the records. Recent texts of users are added, which the publisher has not seen. If a version has no record, or
one whose entropies cannot be compared, all texts are computed. L sequences, P tokens of each, V vocabulary. It runs
beside the engine's thread, with its own cache."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from statistics import median_low

import msgspec
import torch
from torch import Tensor

from core.errors import WeightsError
from core.ids import PolicyRef
from core.model.probes import Answers, ProbeRecord, adds_up, agrees_whole, figures, probe_shape, spread
from serving.engines.local.attention import Row
from serving.engines.local.model import Decoder, slot_cache

_SEED = 0
_SPOTS_OF = 8  # of so many recorded texts one is answered here, too
_TEXTS_OF_USERS = 5
"""Of which more than half decide: of no user there are more than of all others together."""
_KEPT_S = 10.0  # how long the texts of users are looked at again, so that the live version's answers are known
_NOT_FINITE = {"finite": 0.0, "kl_to_live": float("nan"), "entropy": float("nan")}

Texts = Sequence[Sequence[int]]
Named = tuple[PolicyRef, Decoder]


def _no_record(_version: PolicyRef) -> ProbeRecord | None:
    return None


class Probe:
    """Thread-safe."""

    def __init__(
        self,
        anchor: Decoder,
        context_length: int,
        prompts: Texts = (),
        recent: Callable[[], Texts] = tuple,
        record: Callable[[PolicyRef], ProbeRecord | None] = _no_record,
        dtype: str = "float32",
    ) -> None:
        """Make the probe. `recent` is called every ten seconds at most.

        `record` returns what was recorded when a version was published, None where nothing was; it raises WeightsError
        for a record that cannot be read. `dtype`: what the engine computes in. Without `prompts`, sequences start at
        the beginning of a text."""
        config = anchor.model.config.get_text_config()
        first = next((t for t in (config.bos_token_id, config.eos_token_id) if isinstance(t, int)), 0)
        parameters = list(anchor.model.parameters())
        shape = probe_shape(sum(each.numel() for each in parameters), parameters[0].device.type)
        begun = spread(prompts or [(first,)], shape.texts)
        self._count, self._dtype = shape.texts, dtype
        self._tokens = min(shape.most, max(shape.least, shape.own + max(map(len, begun))), context_length)
        self._begun = [prompt[-max(1, self._tokens - shape.own) :] for prompt in begun]
        self._cache = slot_cache(anchor.model, self._count, self._tokens)
        self._recent, self._record = recent, record
        self._drawn_LP: list[list[int]] = []
        self._lock = threading.Lock()
        self._measured: dict[PolicyRef, list[Tensor]] = {}  # of the two measured last
        self._records: dict[PolicyRef, ProbeRecord | None] = {}  # of the two measured last
        self._said: list[Sequence[int]] = []
        self._said_until_s = float("-inf")
        self._of_said: dict[PolicyRef, list[Tensor]] = {}  # of the two measured last

    def measure(self, candidate: Named, live: Named) -> Mapping[str, float]:
        """Return the figures of the sanity gate.

        `finite`: 1 when all logits are; `kl_to_live`: mean over tokens of KL(candidate || live), nats, on the drawn
        sequences, or the median of the recent ones, whichever is more; `entropy`: the candidate's mean entropy per
        token on the drawn, nats. When not finite, the other two are NaN. Raises WeightsError when the candidate answers
        otherwise than was recorded of it."""
        with self._lock:
            own, other = self._recorded(candidate[0], live[0])
            if own is None or other is None or (own.finite and not own.entropies):
                found = self._computed(candidate, live)
            else:
                found = figures(own, other)
            if own is not None and found["finite"] and not self._is_as_recorded(candidate, own):
                return _NOT_FINITE
            of_users = self._of_users(candidate, live)
        if not found["finite"] or not _are_finite([mine for mine, _ in of_users]):
            return _NOT_FINITE
        furthest = median_low([_divergence(mine, theirs) for mine, theirs in of_users]) if of_users else 0.0
        return {**found, "kl_to_live": max(found["kl_to_live"], furthest)}

    def _recorded(self, candidate: PolicyRef, live: PolicyRef) -> tuple[ProbeRecord | None, ProbeRecord | None]:
        """Return both versions' records; one of the live version that cannot be read is none.

        Raises WeightsError when the candidate's cannot be read."""
        known = self._records
        self._records = {candidate: known[candidate] if candidate in known else self._record(candidate)}
        if live not in self._records:
            try:
                self._records[live] = known[live] if live in known else self._record(live)
            except WeightsError:
                self._records[live] = None
        return self._records[candidate], self._records[live]

    def _is_as_recorded(self, candidate: Named, record: ProbeRecord) -> bool:
        """Answer some of the recorded texts; return whether the outputs are finite. Raises WeightsError."""
        count = len(record.token_ids)
        spots = random.Random(record.weights_digest).sample(range(count), max(1, count // _SPOTS_OF))
        some = _cut(record, spots, self._tokens)
        answered = self._logprobs(candidate[1], some.token_ids)
        if not _are_finite(answered):
            return False
        # Weights may be packed, and adapters lie beside them here and are merged there: as in half precision.
        dtype = "bfloat16" if "bfloat16" in (self._dtype, record.dtype) else "float16"
        for verdict in (adds_up(record), agrees_whole(_answers(answered, some), some, dtype)):
            if not verdict:
                raise WeightsError(
                    f"version {candidate[0]} answers otherwise than its publisher recorded: {verdict.why}"
                )
        return True

    def _computed(self, candidate: Named, live: Named) -> dict[str, float]:
        """Compute the figures on sequences drawn from what is live the first time, where nothing was recorded."""
        drawn = self._drawn_LP = self._drawn_LP or self._draw(live[1], self._begun)
        reference = self._measured.get(live[0]) or self._logprobs(live[1], drawn)  # what is live was a candidate
        own = reference if candidate[0] == live[0] else self._logprobs(candidate[1], drawn)
        self._measured = {live[0]: reference, candidate[0]: own}
        if not _are_finite(own):
            return dict(_NOT_FINITE)
        divergence = sum(map(_divergence, own, reference)) / len(own)
        entropy = -sum((own_PV.exp() * own_PV).sum(-1).mean().item() for own_PV in own) / len(own)
        return {"finite": 1.0, "kl_to_live": divergence, "entropy": entropy}

    def _of_users(self, candidate: Named, live: Named) -> list[tuple[Tensor, Tensor]]:
        """Return the logits [P, V] of the candidate and of the live version, for each recent text.

        A text for which the live version's are not finite is no evidence against another version."""
        now_s, most = time.monotonic(), min(_TEXTS_OF_USERS, self._count)
        if now_s >= self._said_until_s or len(self._said) < most - 1:  # one fewer where a user would have most of them
            said = [text[-self._tokens :] for text in islice(self._recent(), most) if len(text) > 1]
            self._said_until_s = now_s + _KEPT_S
            if said != self._said:
                self._said, self._of_said = said, {}
        known = self._of_said
        self._of_said = {
            version: known.get(version) or self._logprobs(decoder, self._said)
            for version, decoder in dict((candidate, live)).items()
        }
        pairs = zip(self._of_said[candidate[0]], self._of_said[live[0]], strict=True)
        return [(mine, theirs) for mine, theirs in pairs if _are_finite([theirs])]

    def _logprobs(self, model: Decoder, sequences: Texts) -> list[Tensor]:
        """[P, V] of each sequence, one after another, so that memory stays small."""
        return [
            model.forward(self._cache, [Row(0, 0, len(sequence))], sequence, all_positions=True).float().log_softmax(-1)
            for sequence in sequences
        ]

    @torch.inference_mode()
    def _draw(self, live: Decoder, begun: Texts) -> list[list[int]]:
        """Sample a version's continuations of the prompts."""
        generator = torch.Generator().manual_seed(_SEED)
        sequences = [list(prompt[:1]) for prompt in begun]
        for at in range(self._tokens - 1):
            rows = [Row(slot, at, at + 1) for slot in range(self._count)]
            logits_LV = live.forward(self._cache, rows, [sequence[-1] for sequence in sequences])
            drawn_L1 = torch.multinomial(logits_LV.float().softmax(-1).cpu(), 1, generator=generator)
            for sequence, prompt, token in zip(sequences, begun, drawn_L1[:, 0].tolist(), strict=True):
                sequence.append(prompt[at + 1] if at + 1 < len(prompt) else token)
        return sequences


def _cut(record: ProbeRecord, texts: Sequence[int], tokens: int) -> ProbeRecord:
    """Return a record of some of the texts alone, and of the beginnings that an engine's context has room for."""
    return msgspec.structs.replace(
        record,
        token_ids=tuple(record.token_ids[text][:tokens] for text in texts),
        choices=tuple(record.choices[text][: tokens - 1] for text in texts),
        logprobs=tuple(record.logprobs[text][: tokens - 1] for text in texts),
        choice_logprobs=tuple(record.choice_logprobs[text][: tokens - 1] for text in texts),
        entropies=tuple(record.entropies[text][: tokens - 1] for text in texts) if record.entropies else (),
    )


def _answers(answered: Sequence[Tensor], record: ProbeRecord) -> Answers:
    """Return what a record tells of its texts, out of what was answered to them."""
    logprobs: list[list[float]] = []
    choices: list[list[list[float]]] = []
    entropies: list[list[float]] = []
    for answer_PV, text, choices_PK in zip(answered, record.token_ids, record.choices, strict=True):
        before_PV = answer_PV[:-1]
        wanted_P1 = torch.tensor(text[1:], device=answer_PV.device)[:, None]
        logprobs.append(before_PV.gather(1, wanted_P1)[:, 0].tolist())
        choices.append(before_PV.gather(1, torch.tensor(choices_PK, device=answer_PV.device)).tolist())
        entropies.append((-(before_PV.exp() * before_PV).sum(-1)).tolist())
    return Answers(logprobs, choices, entropies)


def _are_finite(each_LPV: Sequence[Tensor]) -> bool:
    return all(bool(torch.isfinite(each_PV).all()) for each_PV in each_LPV)


def _divergence(own_PV: Tensor, live_PV: Tensor) -> float:
    """Mean over tokens."""
    return float((own_PV.exp() * (own_PV - live_PV)).sum(-1).mean())
