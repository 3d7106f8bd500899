"""Tokens per second of the in-process engine at 1, 8 and 32 concurrent requests, against transformers.generate.

    python -m bench engine [--rounds 7]

Both have the same weights, prompts, lengths and sampling: one thread, in turns, medians."""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import uvloop
from transformers import AutoModelForCausalLM, PreTrainedModel

from bench.table import Row, interleave, report
from core.blobs import FsspecBlobs
from core.events import Sampling
from core.ids import InferenceId, base_ref
from core.ports import GenerateRequest
from core.settings import ServingSettings
from serving.engines.local import LocalEngine
from serving.weights.published import BlobWeights

MODEL = Path(__file__).resolve().parents[2] / "models" / "tiny"
LENGTHS = (64, 64)
GOAL = 1.3
SWITCH_INTERVAL_S = 0.001  # the loop, the interval and the frozen heap are those of the service


def prompts_of(requests: int, round_: int, length: int) -> torch.Tensor:
    """Return new prompts each round, [requests, length]: the engine must not find them in its prefix cache."""
    generator = torch.Generator().manual_seed(1000 * round_ + requests)
    return torch.randint(4, 512, (requests, length), generator=generator)


def measure_engine(engine: LocalEngine, requests: int, rounds: "Rounds", lengths: tuple[int, int] = LENGTHS) -> float:
    """Return the tokens per second of so many requests at once; `lengths`: tokens of a prompt and of its answer."""
    prompts = prompts_of(requests, rounds.next(), lengths[0]).tolist()

    async def one(prompt: list[int]) -> int:
        asked = GenerateRequest(
            inference_id=InferenceId("0"),
            prompt_token_ids=tuple(prompt),
            sampling=Sampling(max_tokens=lengths[1]),
            stop_token_ids=(),
        )
        return sum([len(chunk.token_ids) async for chunk in engine.generate(asked)])

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*(one(prompt) for prompt in prompts)))

    return per_second(lambda: uvloop.run(all_of_them()))


def measure_generate(
    model: PreTrainedModel, requests: int, rounds: "Rounds", lengths: tuple[int, int] = LENGTHS
) -> float:
    ids = prompts_of(requests, rounds.next(), lengths[0])

    generated: Any = model.generate

    def generate() -> int:
        made = generated(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=lengths[1],
            max_new_tokens=lengths[1],
            pad_token_id=0,
        )
        return int(made[:, lengths[0] :].numel())

    return per_second(generate)


class Rounds:
    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


def per_second(work: Callable[[], int]) -> float:
    started = time.perf_counter()
    tokens = work()
    return tokens / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with tempfile.TemporaryDirectory() as directory:
        weights = BlobWeights(FsspecBlobs(directory))
        anchor = weights.publish(base_ref(1), [MODEL / "model.safetensors"], None)
        engine = LocalEngine(ServingSettings(), MODEL, weights, anchor)
        engine.start()
        gc.collect()
        gc.freeze()
        rows = []
        for requests in (1, 8, 32):
            contenders = {
                "onward": partial(measure_engine, engine, requests, Rounds()),
                "transformers.generate": partial(measure_generate, model, requests, Rounds()),
            }
            for contender in contenders.values():
                contender()  # warm up
            figures = interleave(contenders, rounds)
            ours, peer = figures["onward"], figures["transformers.generate"]
            metric = f"generated tokens, {requests} concurrent"
            if requests == 1:
                rows.append(Row(metric, ours, "tokens/s", "transformers.generate", ours / peer))
            else:
                rows.append(Row.at_least(metric, ours, "tokens/s", "transformers.generate", ours / peer, GOAL))
        engine.close()
    report("engine", rows)


if __name__ == "__main__":
    main()
