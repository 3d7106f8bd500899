"""Tokens per second of the in-process engine with SmolLM2-135M in float32, against transformers.generate.

    ONWARD_SMOLLM2=DIRECTORY python -m bench real_decode [--rounds 3]

Both have the same weights, prompts, lengths and sampling: one thread, in turns, medians. The directory is
`models/smollm2` (`make smollm2`) where the environment names none."""

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from bench.engines.engine import GOAL, SWITCH_INTERVAL_S, Rounds, measure_engine, measure_generate
from bench.table import Row, interleave, report
from core.blobs import FsspecBlobs
from core.ids import base_ref
from core.settings import LocalEngineSettings, ServingSettings
from serving.engines.local import LocalEngine
from serving.weights.published import BlobWeights

MODEL = Path(os.environ.get("ONWARD_SMOLLM2") or Path(__file__).resolve().parents[2] / "models" / "smollm2")
LENGTHS = (24, 40)
SETTINGS = ServingSettings(local=LocalEngineSettings(slots=8), context_length=1024)


def rows_of(engine: LocalEngine, rounds: int) -> Iterator[Row]:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    for requests in (1, 8):
        contenders = {
            "onward": partial(measure_engine, engine, requests, Rounds(), LENGTHS),
            "transformers.generate": partial(measure_generate, model, requests, Rounds(), LENGTHS),
        }
        for contender in contenders.values():
            contender()  # warm up
        figures = interleave(contenders, rounds)
        ours, peer = figures["onward"], figures["transformers.generate"]
        metric = f"generated tokens, {requests} concurrent"
        yield Row.at_least(metric, ours, "tokens/s", "transformers.generate", ours / peer, GOAL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with tempfile.TemporaryDirectory() as directory:
        weights = BlobWeights(FsspecBlobs(directory))
        anchor = weights.publish(base_ref(1), sorted(MODEL.glob("*.safetensors")), None)
        engine = LocalEngine(SETTINGS, MODEL, weights, anchor)
        engine.start()
        gc.collect()
        gc.freeze()
        report("real_decode", list(rows_of(engine, rounds)))
        engine.close()


if __name__ == "__main__":
    main()
