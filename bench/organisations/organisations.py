"""Many organisations on one in-process engine: tokens per second against one policy, and what a swap costs the others.

    python -m bench organisations [--rounds 7] [--swaps 100] [--tokens 64] [--model models/smollm2]

The shipped model, or another one (rows `organisations_NAME`), all slots busy: requests of 50 policies, each
with an adapter of its own, against as many of one policy, which has the engine to itself and is merged as it is without
organisations; one thread, in turns, medians. Then one policy is swapped, with loading and its probe, while others
stream: the stall is the longest time that one of them waits for its next token during the swap, less the median of such
waits; so it is measured without a swap, too, which shows what the machine does by itself."""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import uvloop
from safetensors.torch import load_file, save_file

from bench.engines.engine import MODEL, SWITCH_INTERVAL_S, Rounds, per_second, prompts_of
from bench.table import Row, interleave, report
from core.blobs import FsspecBlobs
from core.events import Sampling
from core.ids import BASE, InferenceId, PolicyName, PolicyRef, Version, base_ref
from core.ports import AdapterConfig, GenerateRequest, WeightsRef
from core.settings import ServingSettings
from serving.engines.local import LocalEngine
from serving.weights.published import BlobWeights

POLICIES = tuple(PolicyName(f"org-{number}") for number in range(50))
RANK = 8
PROMPT_TOKENS = 64
LISTENERS = 24
THROUGHPUT_GOAL, STALL_GOAL_MS = 0.8, 5.0
_QUIET_S = 0.05


class Publisher:
    """Adapters upon a model, drawn anew for each version."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.weights = BlobWeights(FsspecBlobs(directory / "blobs"))
        self.anchor = self.weights.publish(base_ref(1), [model / "model.safetensors"], None)
        self._file, self._draw = directory / "adapter.safetensors", torch.Generator().manual_seed(0)
        self._shapes = {
            name.removesuffix(".weight"): weight.shape
            for name, weight in load_file(model / "model.safetensors").items()
            if name.endswith("_proj.weight")
        }

    def adapter(self, version: PolicyRef) -> WeightsRef:
        tensors = {}
        for module, (outputs, inputs) in self._shapes.items():
            tensors[f"{module}.lora_A.weight"] = 0.02 * torch.randn(RANK, inputs, generator=self._draw)
            tensors[f"{module}.lora_B.weight"] = 0.02 * torch.randn(outputs, RANK, generator=self._draw)
        save_file(tensors, self._file)
        config = AdapterConfig(base_digest=self.anchor.digest, rank=RANK, alpha=float(RANK))
        return self.weights.publish(version, [self._file], None, config)


def request(prompt: Sequence[int], policy: PolicyName, tokens: int) -> GenerateRequest:
    return GenerateRequest(
        inference_id=InferenceId("0"),
        prompt_token_ids=tuple(prompt),
        sampling=Sampling(max_tokens=tokens),
        stop_token_ids=(),
        policy=policy,
    )


def measure(engine: LocalEngine, policies: Sequence[PolicyName], rounds: Rounds, slots: int, tokens: int) -> float:
    """Return the tokens per second of as many requests at once as there are slots, of these policies in turn."""
    number = rounds.next()
    prompts = prompts_of(slots, number, PROMPT_TOKENS).tolist()
    shift = number * slots

    async def one(place: int) -> int:
        asked = request(prompts[place], policies[(shift + place) % len(policies)], tokens)
        return sum([len(chunk.token_ids) async for chunk in engine.generate(asked)])

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*map(one, range(slots))))

    return per_second(lambda: uvloop.run(all_of_them()))


class Waits:
    """When each of the others' tokens came."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []  # from a token of a stream to its next, in seconds

    async def listen(self, engine: LocalEngine, policy: PolicyName, seed: int, over: asyncio.Event) -> None:
        while not over.is_set():
            seed += 1000
            last_s = None
            async for _ in engine.generate(request(prompts_of(1, seed, PROMPT_TOKENS)[0].tolist(), policy, 400)):
                now_s = time.perf_counter()
                if last_s is not None:
                    self.spans.append((last_s, now_s))
                last_s = now_s
                if over.is_set():
                    break

    def stalls_ms(self, windows: Sequence[tuple[float, float]]) -> np.ndarray:
        """Return, for each window, the longest wait in it, less the median of all waits."""
        began_s, ended_s = np.array(self.spans).T
        median_s = float(np.median(ended_s - began_s))
        longest = [(ended_s - began_s)[(ended_s > start) & (began_s < end)].max() for start, end in windows]
        return np.maximum(0.0, np.array(longest) - median_s) * 1000


async def swap(engine: LocalEngine, made: Publisher, swaps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the others' stalls in milliseconds: in swaps, in their last step alone, and where there is no swap."""
    over, waits = asyncio.Event(), Waits()
    others = [asyncio.create_task(waits.listen(engine, POLICIES[1 + place], place, over)) for place in range(LISTENERS)]
    during: list[tuple[float, float]] = []
    switching: list[tuple[float, float]] = []
    without: list[tuple[float, float]] = []
    await asyncio.sleep(1.0)
    for number in range(swaps):
        ref = await asyncio.to_thread(made.adapter, PolicyRef(POLICIES[0], Version(number + 3)))
        await asyncio.sleep(_QUIET_S)
        began_s = time.perf_counter()
        switched_s, ended_s = await asyncio.to_thread(turn, engine, ref)
        during.append((began_s, ended_s))
        switching.append((switched_s, ended_s))
        await asyncio.sleep(_QUIET_S)
        without.append((time.perf_counter(), time.perf_counter() + ended_s - began_s))
        await asyncio.sleep(ended_s - began_s + _QUIET_S)
    over.set()
    await asyncio.gather(*others)
    return waits.stalls_ms(during), waits.stalls_ms(switching), waits.stalls_ms(without)


def turn(engine: LocalEngine, ref: WeightsRef) -> tuple[float, float]:
    """Do what a host does: load, probe, switch, unload. Returns when the switch began, and when it was over."""
    before = engine.live_of(ref.version.policy)
    engine.load(ref)
    engine.probe(ref.version)
    switched_s = time.perf_counter()
    engine.switch(ref.version)
    ended_s = time.perf_counter()
    engine.unload(before)
    return switched_s, ended_s


def rows_of(figures: dict[str, float], stalls: Sequence[np.ndarray]) -> Iterator[Row]:
    many, alone = figures["50 policies"], figures["one policy"]
    yield Row.at_least("50 policies on one engine", many, "tokens/s", "one policy", many / alone, THROUGHPUT_GOAL)
    kept = figures["one policy, adapter kept apart"]
    yield Row("50 policies on one engine", many, "tokens/s", "one policy, adapter kept apart", many / kept)
    p99_ms, switch_ms, quiet_ms = (float(np.quantile(each, 0.99)) for each in stalls)
    yield Row.at_most("others' stall in a swap, p99", p99_ms, "ms", "1 ms", p99_ms, STALL_GOAL_MS)
    yield Row("others' stall in a swap, median", float(np.median(stalls[0])), "ms")
    yield Row("others' stall in a swap's switch alone, p99", switch_ms, "ms")
    yield Row("others' stall in a swap's switch alone, median", float(np.median(stalls[1])), "ms")
    yield Row("others' longest wait without a swap, p99", quiet_ms, "ms")
    yield Row("others' longest wait without a swap, median", float(np.median(stalls[2])), "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--model", type=Path, default=MODEL)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings = ServingSettings()
    slots = settings.local.slots
    with tempfile.TemporaryDirectory() as directory:
        made = Publisher(Path(directory), given.model)
        shared = LocalEngine(settings, given.model, made.weights, made.anchor, keeps_adapters=True)
        alone = LocalEngine(settings, given.model, made.weights, made.anchor)
        for engine in (shared, alone):
            engine.start()
        for policy in POLICIES:
            shared.load(made.adapter(PolicyRef(policy, Version(2))))
            shared.switch(PolicyRef(policy, Version(2)))
        alone.load(made.adapter(base_ref(2)))
        alone.switch(base_ref(2))
        gc.collect()
        gc.freeze()
        contenders = {
            "50 policies": partial(measure, shared, POLICIES, Rounds(), slots, given.tokens),
            "one policy": partial(measure, alone, (BASE,), Rounds(), slots, given.tokens),
            "one policy, adapter kept apart": partial(measure, shared, POLICIES[:1], Rounds(), slots, given.tokens),
        }
        for contender in contenders.values():
            contender()  # warm up
        figures = interleave(contenders, given.rounds)
        stalls = uvloop.run(swap(shared, made, given.swaps))
        for engine in (shared, alone):
            engine.close()
    name = "organisations" if given.model == MODEL else f"organisations_{given.model.name}"
    report(name, list(rows_of(figures, stalls)))


if __name__ == "__main__":
    main()
