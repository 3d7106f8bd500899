"""A step in one call of torch computes what many calls do, to the bit, and is used where it can be."""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from small_models import SMALL, saved
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from core.events import Sampling
from core.settings import ServingSettings
from serving.engines.local import sampler
from serving.engines.local.attention import AttentionPlan, Row, SlotCache
from serving.engines.local.model import Decoder, load_decoder, slot_cache
from serving.engines.local.native import library

SHAPES = [
    LlamaConfig(**SMALL),
    LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    Qwen2Config(**SMALL),
    Qwen3Config(**SMALL, head_dim=16),
]
SLOTS, CONTEXT = 24, 40


@pytest.fixture(autouse=True)
def compiled() -> None:
    if not library.is_loaded():
        in_ci = os.environ.get("ONWARD_REQUIRE_SERVICES") == "1"
        assert not in_ci or library.compiler_here() is None, "make install has compiled nothing"
        pytest.skip("the engine's step is not compiled: make install")


def steps_of(seed: int) -> list[list[Row]]:
    """Sequences that begin, go on in pieces, and decode together, in slots that are neighbours or far apart."""
    draw = random.Random(seed)
    at, steps = dict.fromkeys(draw.sample(range(SLOTS), draw.randint(1, SLOTS)), 0), []
    for _ in range(8):
        rows = []
        for slot, start in at.items():
            count = draw.choice((0, 1, 1, 1, 5)) if start else draw.choice((1, 3, 9))
            if count and start + count <= CONTEXT:
                rows.append(Row(slot, start, start + count))
                at[slot] += count
        decoding = sorted((row for row in rows if row.end - row.start == 1), key=lambda row: row.slot)
        steps.append([*decoding, *(row for row in rows if row.end - row.start > 1)])
    return [rows for rows in steps if rows]


def call_by_call(decoder: Decoder, cache: SlotCache, rows: list[Row], tokens: list[int], *, every: bool) -> Tensor:
    lean = decoder._lean
    assert lean is not None
    plan = AttentionPlan(rows, cache.slot_tokens, torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        return lean(torch.tensor(tokens), plan, cache, None if every else plan.last_R)


@pytest.mark.parametrize("config", SHAPES)
def test_a_step_is_the_same_to_the_bit(tmp_path: Path, config: PreTrainedConfig) -> None:
    saved(config, tmp_path)
    decoder = load_decoder(tmp_path, ServingSettings())
    assert decoder._lean is not None
    assert decoder._lean._native is not None
    for seed in range(6):
        caches = [slot_cache(decoder.model, SLOTS, CONTEXT) for _ in range(2)]
        draw = random.Random(seed)
        for rows in steps_of(seed):
            tokens = [draw.randrange(128) for row in rows for _ in range(row.start, row.end)]
            every = draw.random() < 0.3
            at_once = decoder.forward(caches[0], rows, tokens, all_positions=every)
            assert torch.equal(at_once, call_by_call(decoder, caches[1], rows, tokens, every=every))
        held = [[*cache.keys_STKD, *cache.values_STKD] for cache in caches]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*held, strict=True))


@dataclass
class Asked:
    sampling: Sampling
    seed: int
    rng: random.Random = field(init=False)
    output: tuple[int, ...] = ()
    top_logprobs: int = 0
    mask: None = None
    ids_to_tell: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)


@pytest.mark.parametrize("temperatures", [(1.0, 1.0, 1.0, 1.0), (0.5, 1.0, 1.3, 0.05)])
def test_sampling_is_the_same_to_the_bit(temperatures: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(4, 512, generator=torch.Generator().manual_seed(3)) * 4
    logits[2, 7] = torch.nan

    def sampled(seed: int) -> sampler.Samples:
        rows = [Asked(Sampling(max_tokens=1, temperature=each), seed + at) for at, each in enumerate(temperatures)]
        return sampler.sample(logits, rows)

    at_once = [sampled(seed) for seed in range(200)]
    monkeypatch.setattr("serving.engines.local.sampler.NativeStep.fits", lambda _like: False)
    for seed, ours in enumerate(at_once):
        theirs = sampled(seed)
        assert [ours.token_ids[row] for row in (0, 1, 3)] == [theirs.token_ids[row] for row in (0, 1, 3)]
        assert ours.logprobs == pytest.approx(theirs.logprobs, rel=0, abs=0, nan_ok=True)
