"""An update on a GPU against raw transformers (with peft) there, and against the same update on a processor.

    python -m bench gpu_update

Models have their authors' shapes and random weights: what is computed is the same, and nothing need be here. Batches
are short ones, as users of SmolLM2-135M make, and long ones, 32 turns of 1,024 positions; on uneven ones packed rows
are compared with padded ones. The raw step is what one would write by hand: autocast, logits of the sampled places,
log_softmax, the loss with its KL term, AdamW; it gets finished tensors and records nothing. Both begin with the same
weights and must agree on loss and gradient before anything is timed. A processor computes in float32 on one thread, as
the learner does there, and must agree. Memory is held to the arithmetic that `onward init` goes by, and speed to the
share of the card's peak that it expects.

Legend: N sampled tokens, V vocabulary."""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.table import Row, interleave, report
from bench.updates.gpu_raw_step import RawStep
from bench.updates.learner_memory import CONFIGS
from bench.updates.learner_step import scored
from core.ids import SessionId
from core.model.memory import shapes_by_config
from core.profile import read_shape
from core.profile.expectation import position_flops
from core.profile.machine import Card
from core.profile.memory import learner_memory
from core.settings import (
    AdmissionSettings,
    AdvantageSettings,
    ComputeSettings,
    KlSettings,
    LearnerSettings,
    LoraSettings,
    ObjectiveSettings,
    OptimizerSettings,
    UserSettings,
)
from learner.sequences.joining import merge
from learner.sequences.scored import ScoredTurn
from learner.sequences.tensors import micro_batches
from learner.updates.state import LearnerState, make_state
from learner.updates.update import update

ADAPTERS, WHOLE = "adapters", "all weights"
RANKS = {ADAPTERS: 16, WHOLE: 0}
ROUNDS = 5
RAW, PROCESSOR = "raw transformers", "a processor"
TIME_GOAL, MEMORY_GOAL = 1.0, 1.1
PARITY, RAW_PARITY = 1e-3, 0.05  # relative: of float32 elsewhere; of bfloat16 in another order
EXPECTED_SHARE = 0.3  # of the card's peak (core.profile.expectation)


@dataclass(frozen=True)
class Batch:
    """Turns, each of a session of its own; lengths are drawn evenly from the bounds."""

    turns: int
    prompt: tuple[int, int]
    answer: tuple[int, int]
    micro_tokens: int


SHORT = Batch(8, (30, 50), (14, 64), 8192)
LONG = Batch(32, (768, 768), (256, 256), 16384)
UNEVEN = Batch(64, (10, 900), (10, 60), 4096)
ON_PROCESSOR_TOKENS = 512  # what fits its caches


def written(directory: Path, name: str) -> Path:
    """Write a model of this shape with random weights."""
    model = directory / name
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIGS[name] | {"max_position_embeddings": 16384}))
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator).mul_(0.02).cpu()

    tensors = {tensor: drawn(shape) for tensor, shape in shapes_by_config(CONFIGS[name]).items()}
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


def make_batch(kind: Batch, vocabulary: int) -> list[ScoredTurn]:
    rng, turns = random.Random(0), list[ScoredTurn]()
    for number in range(kind.turns):
        prompt, answer = (
            tuple(rng.randrange(vocabulary) for _ in range(rng.randint(*bounds)))
            for bounds in (kind.prompt, kind.answer)
        )
        turn = scored(SessionId(f"session-{number}"), 0, prompt, answer, rng.choice((1.0, -0.5)), rng)
        usual = torch.tensor(float(vocabulary)).log().item()
        logprobs = tuple(-usual + rng.gauss(0, 0.1) for _ in answer)
        turns.append(ScoredTurn(msgspec.structs.replace(turn.turn, logprobs=logprobs), turn.reward))
    return turns


def settings_of(way: str, micro_tokens: int, device: str, precision: str, *, checkpointed: bool) -> LearnerSettings:
    return LearnerSettings(
        device=device,
        lora=LoraSettings(rank=RANKS[way]),
        optimizer=OptimizerSettings(learning_rate=2e-4 if RANKS[way] else 2e-5),
        objective=ObjectiveSettings(kl=KlSettings(coefficient=0.05)),
        advantage=AdvantageSettings(baseline="raw"),
        users=UserSettings(max_share=1.0),
        admission=AdmissionSettings(max_divergence=1e9, min_ess=0.0),
        compute=ComputeSettings(
            micro_batch_tokens=micro_tokens,
            gradient_checkpointing=checkpointed,
            precision=precision,  # type: ignore[arg-type]
        ),
    )


def timed(step: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begun)

    return run


def grown_bytes(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what the work returns, and the most memory of the card that it took at once."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = work()
    return found, torch.cuda.max_memory_allocated() - before


@dataclass(frozen=True)
class Begun:
    """A state after two updates, and the second's figures: by then the policy has left its anchor."""

    state: LearnerState
    first: dict[str, Tensor]
    """What its adapters were before."""
    metrics: dict[str, float]
    milliseconds: float


def begin(model: Path, settings: LearnerSettings, batch: Sequence[ScoredTurn]) -> Begun:
    state = make_state(model, settings)
    first = {name: tensor.cpu() for name, tensor in state.policy.adapter_tensors().items()}
    update(state, batch, settings)
    metrics = dict[str, float]()
    took = timed(lambda: metrics.update(update(state, batch, settings).metrics))()
    return Begun(state, first, metrics, took)


def agree(mine: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the larger relative difference of loss and gradient norm."""
    return max(abs(mine[name] - other[name]) / abs(other[name]) for name in ("loss", "gradient_norm"))


def parity(model: Path, way: str, batch: Sequence[ScoredTurn]) -> Iterator[Row]:
    """Yield the differences of a GPU's updates from a processor's, and how fast each is."""
    cpu = settings_of(way, ON_PROCESSOR_TOKENS, "cpu", "float32", checkpointed=False)
    here = begin(model, cpu, batch)
    tokens = here.metrics["tokens"]
    slow = tokens / here.milliseconds * 1000
    yield Row(f"{way}, short: update on {PROCESSOR}, float32", slow, "sampled tokens/s")
    for precision, bound in (("float32", PARITY), ("bfloat16", RAW_PARITY)):
        gpu = settings_of(way, SHORT.micro_tokens, "cuda", precision, checkpointed=False)
        there = begin(model, gpu, batch)
        apart = agree(there.metrics, here.metrics)
        what = f"{way}, short: loss and gradient norm, {precision}"
        yield Row.at_most(what, apart, "relative difference", PROCESSOR, apart, bound)
        took = interleave({"it": timed(partial(update, there.state, batch, gpu))}, ROUNDS)["it"]
        fast = tokens / took * 1000
        yield Row(f"{way}, short: update, {precision}", fast, "sampled tokens/s", PROCESSOR, fast / slow)


def against_raw(model: Path, way: str, kind: Batch, label: str, *, checkpointed: bool) -> Iterator[Row]:
    """Yield time and memory of an update and of the raw step on the same micro-batches, in bfloat16."""
    settings = settings_of(way, kind.micro_tokens, "cuda", "bfloat16", checkpointed=checkpointed)
    shape = read_shape(model)
    batch = make_batch(kind, CONFIGS[model.name]["vocab_size"])
    ours, mine = grown_bytes(partial(begin, model, settings, batch))
    parts = micro_batches(merge(batch), batch, kind.micro_tokens, "cuda")
    raw, others = grown_bytes(lambda: RawStep(model, settings, ours.first, parts, batch))
    loss, norm = raw.after_two
    apart = agree(ours.metrics, {"loss": loss, "gradient_norm": norm})
    assert apart < RAW_PARITY, f"{model.name}, {way}: {ours.metrics}, and {loss}, {norm} in the raw step"
    what = f"{model.name}, {way}, {label}"
    found = interleave({"ours": timed(lambda: update(ours.state, batch, settings)), RAW: timed(raw.step)}, ROUNDS)
    yield Row(f"{RAW}, {what}", found[RAW], "ms")
    yield Row.at_most(f"update, {what}", found["ours"], "ms", RAW, found["ours"] / found[RAW], TIME_GOAL)
    rate = ours.metrics["positions"] / found["ours"] * 1000
    yield Row(f"update, {what}", rate, "positions/s")
    yield Row.at_most(f"update, {what}: memory", mine / 1e9, "GB", RAW, mine / others, 1.0)
    counted = learner_memory(shape, settings, kind.micro_tokens).total
    yield Row.at_most(f"update, {what}: memory", mine / 1e9, "GB", "arithmetic", mine / counted, MEMORY_GOAL)
    card = Card(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory)
    if kind is LONG and card.peak_tflops is not None:
        share = rate * position_flops(shape, settings) / (card.peak_tflops * 1e12)
        wanted = "what `onward init` expects"
        yield Row.at_least(f"update, {what}: all operations", share, "of the peak", wanted, share / EXPECTED_SHARE, 1.0)


def packed(model: Path) -> Iterator[Row]:
    """Yield the time of an update whose sequences share rows, against one whose sequences are padded."""
    settings = settings_of(ADAPTERS, UNEVEN.micro_tokens, "cuda", "bfloat16", checkpointed=False)
    batch, state = make_batch(UNEVEN, CONFIGS[model.name]["vocab_size"]), make_state(model, settings)
    close = settings.model_copy(update={"compute": settings.compute.model_copy(update={"packed": True})})
    ways = {"padded": settings, "packed": close}
    steps = {name: timed(partial(update, state, batch, each)) for name, each in ways.items()}
    interleave(steps, 1)
    found = interleave(steps, ROUNDS)
    what = f"{model.name}, {ADAPTERS}, uneven"
    yield Row(f"update, {what}, padded", found["padded"], "ms")
    ratio = found["packed"] / found["padded"]
    yield Row.at_most(f"update, {what}, packed", found["packed"], "ms", "padded", ratio, TIME_GOAL)


def parts(directory: Path) -> Iterator[Iterator[Row]]:
    small = written(directory, "SmolLM2-135M")
    for way in RANKS:
        yield parity(small, way, make_batch(SHORT, CONFIGS[small.name]["vocab_size"]))
        yield against_raw(small, way, SHORT, "short", checkpointed=False)
        yield against_raw(small, way, LONG, "long", checkpointed=False)
    yield packed(small)
    torch.cuda.empty_cache()
    yield against_raw(written(directory, "Qwen3-8B"), ADAPTERS, LONG, "long, checkpointed", checkpointed=True)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("gpu_update: there is no GPU here")
    torch.set_num_threads(1)
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="onward-gpu-update-") as directory:
        for part in parts(Path(directory)):
            found += part
            report("gpu_update", found, card=torch.cuda.get_device_name())  # what is cut off keeps its rows


if __name__ == "__main__":
    main()
