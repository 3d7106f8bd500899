"""Measure the memory that a learner needs, by the size of the model, what trains and the number of cards.

    python -m bench learner_memory

Models are made on torch's meta device, so that none is on this machine: their shapes are those that arithmetic takes
from their config.json. With SmolLM2-135M here (`make smollm2`), what its learner took is measured in a process of its
own, beside what arithmetic says: by how much its memory grew at most from when it had imported all to the end of its
second update."""

import sys
from math import prod
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

from bench.table import Row, report
from bench.updates.real_update import MODEL, RANK, SETTINGS, measured_growth
from core.model.memory import (
    LearnerPlan,
    Shapes,
    adapter_parameters,
    learner_bytes,
    parameters_of,
    shapes_by_config,
    shapes_in,
)

_GIB = 2**30
_LLAMA = {"model_type": "llama", "num_key_value_heads": 8}
_QWEN = {"model_type": "qwen3", "vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        **_LLAMA,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "Llama-3.2-1B": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "Qwen3-8B": {
        **_QWEN,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "Qwen3-32B": {
        **_QWEN,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "tie_word_embeddings": False,
    },
}
POSITIONS = 8192  # of a micro-batch on a GPU


def shapes_on_meta(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def plans(cards: int) -> dict[str, LearnerPlan]:
    """Return how adapters, and how all weights, train on a GPU."""
    common: dict[str, Any] = {"cards": cards, "positions": POSITIONS, "checkpointed": True, "computed": 2}
    return {f"adapters of rank {RANK}": LearnerPlan(rank=RANK, **common), "all weights": LearnerPlan(**common)}


def main() -> None:
    table = Table("model", "parameters", "cards", "trains", "model", "moments, gradients", "anchor", "gathered")
    table.add_column("activations")
    table.add_column("GiB a card")
    rows: list[Row] = []
    for name, config in CONFIGS.items():
        shapes = shapes_on_meta(config)
        assert sum(map(prod, shapes.values())) == parameters_of(shapes_by_config(config)), name
        for cards in (1, 8):
            for trains, plan in plans(cards).items():
                rows.append(_entered(table, name, shapes, trains, plan))
    Console().print(table)
    if list(MODEL.glob("*.safetensors")):
        rows += _measured(shapes_in(sorted(MODEL.glob("*.safetensors"))))
    else:
        sys.stderr.write(f"{MODEL}: no model, so nothing is measured\n")
    report("learner_memory", rows)


def _entered(table: Table, name: str, shapes: Shapes, trains: str, plan: LearnerPlan) -> Row:
    said, numbers = learner_bytes(shapes, plan), parameters_of(shapes)
    parts = (said.weights, said.moments + said.gradients, said.anchor, said.gathered, said.activations, said.total)
    table.add_row(name, f"{numbers / 1e9:.3g}B", str(plan.cards), trains, *(f"{part / _GIB:.2f}" for part in parts))
    return Row(f"{name}, {trains}, {plan.cards} cards", said.total / _GIB, "GiB a card")


def _measured(shapes: Shapes) -> list[Row]:
    plan = LearnerPlan(rank=RANK, positions=SETTINGS.compute.micro_batch_tokens)
    said, grown = learner_bytes(shapes, plan), measured_growth()
    kept = 2 + 12 * adapter_parameters(shapes, RANK) / parameters_of(shapes)
    return [
        Row.at_most("SmolLM2-135M, adapters: kept between updates", kept, "bytes a parameter", "bytes", kept, 2.5),
        Row("SmolLM2-135M, adapters: at most, by arithmetic", said.total / 2**20, "MiB"),
        Row.at_most("the same, measured", grown / 2**20, "MiB", "arithmetic", grown / said.total, 1.15),
    ]


if __name__ == "__main__":
    main()
